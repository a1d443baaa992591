"""Mixed traffic for as long as asked, every answer checked against its own request: `python -m soak`."""
