"""Train, calibrate and evaluate the routing models. Serving never runs this code."""
