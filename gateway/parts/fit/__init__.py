"""Fit, evaluate and calibrate on labelled data: the work of `tierline fit train`, `eval`, `calibrate` and `learn`.

Nothing that serves requests imports this package.
"""
