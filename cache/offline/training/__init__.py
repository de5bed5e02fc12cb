"""Fit the models that the cache serves with, offline. Needs the `train` extra."""
