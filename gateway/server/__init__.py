"""Serve the application over HTTP: server and worker processes, connection limits, shutdown."""
