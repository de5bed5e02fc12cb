"""Clients as applications use them, each in an environment of its own, against the gateway."""
