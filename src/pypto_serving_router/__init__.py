"""Keeps each conversation on the replica that already holds its KV cache."""

__version__ = "0.1.0"
