"""Campaigns of hostile input against every reader of bytes the router has: `python -m fuzz`."""
