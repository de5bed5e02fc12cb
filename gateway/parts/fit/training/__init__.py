"""Fit the heads of `routing` and the verifier of `cache`. Needs scikit-learn (the `train` extra)."""
