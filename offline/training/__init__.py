"""Fit the heads that `routing` serves and write their artefacts. Needs scikit-learn (the `train` extra)."""
