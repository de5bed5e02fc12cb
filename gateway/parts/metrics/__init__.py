"""Count requests in Prometheus metrics, and serve their text at `/metrics`."""
