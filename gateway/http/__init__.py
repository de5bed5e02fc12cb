"""Handle HTTP for the pipeline, its steps 1 to 3 and 10: routes, messages, request context."""
