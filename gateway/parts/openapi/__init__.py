"""Show what the gateway serves as an OpenAPI document, and as a page."""
