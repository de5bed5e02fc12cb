"""Decide what the cache may do for a request, and under which keys. Pure functions, no sockets."""
