"""Fleet file and settings: the only list of options and fields."""
