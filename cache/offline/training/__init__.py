"""Offline fits of what the cache serves with. Needs the `train` extra."""
