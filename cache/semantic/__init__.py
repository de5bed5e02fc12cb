"""Decide whether a stored question means the same as a new one: guards, verifier, cross-encoder."""
