"""What session affinity is worth: conversations replayed against replicas with a prefix cache. See README.md."""
