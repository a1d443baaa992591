"""Everything that can go wrong around a router, done to a real one, and looked at: `python -m faults`."""
