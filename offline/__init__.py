"""Train, evaluate and calibrate on labelled data: the work of `tierline train`, `eval` and `calibrate`.

Nothing that serves requests imports this package.
"""
