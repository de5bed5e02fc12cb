"""Train, evaluate and calibrate on labelled data: the work of `tierline train`, `eval` and `calibrate`.

Other commands print with its reports and progress bars. Nothing that serves requests imports this package.
"""
