"""Fit, evaluate and calibrate on labelled data: the work of `tierline train`, `eval`, `calibrate` and `learn`.

Nothing that serves requests imports this package.
"""
