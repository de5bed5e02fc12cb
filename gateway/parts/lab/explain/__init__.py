"""Explain a routing decision: each step of a request's path, and what would have to differ for another."""
