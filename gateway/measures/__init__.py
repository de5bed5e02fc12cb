"""Measure routers on labelled prompts: curves, figures with intervals, splits, and baselines. No I/O."""
