"""How a command runs on a host, and what is run there."""
