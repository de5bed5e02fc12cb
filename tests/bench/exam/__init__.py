"""Held-out exam of the semantic cache: `python -m tests.bench.exam`. Nothing here is trained on."""
