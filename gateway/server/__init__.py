"""Serve the application over HTTP: one server process, its listeners, connection limits, shutdown."""
