"""Active health checks."""
