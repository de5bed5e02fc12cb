"""Export spans and metrics by OTLP, where the environment sets an endpoint for them."""
