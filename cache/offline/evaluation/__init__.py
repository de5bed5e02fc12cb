"""Evaluate the cache on labelled pairs of questions, with confidence intervals. Offline, no I/O."""
