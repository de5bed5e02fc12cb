"""Evaluate a router on labelled prompts: curves, figures with intervals, and baselines."""
