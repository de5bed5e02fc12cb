"""Held-out exam of the semantic cache: `python -m tools.exam`. Nothing here is trained on."""
