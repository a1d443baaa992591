"""Commands that ask a running router, and show what it says."""
