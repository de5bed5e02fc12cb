"""Fits what `routing` serves: heads and their artefacts. Needs scikit-learn (the `train` extra); serving does not."""
