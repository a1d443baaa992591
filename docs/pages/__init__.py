"""Pages of the documentation that come from the code."""
