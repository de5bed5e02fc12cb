"""What a router is worth on labelled prompts: curves, figures with intervals, and the baselines to beat."""
