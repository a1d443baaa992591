"""The router's own endpoints."""
