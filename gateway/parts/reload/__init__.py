"""Reload policy files when they change, while requests continue."""
