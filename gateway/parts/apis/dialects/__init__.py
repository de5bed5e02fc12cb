"""Translate between chat completions and the other APIs, for clients and for backends."""
