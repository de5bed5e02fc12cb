"""Run the application: the HTTP server, its limits on connections, and its shutdown."""
