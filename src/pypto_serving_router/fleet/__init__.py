"""The control path: which replicas run where."""
