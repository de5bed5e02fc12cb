"""Train, calibrate and evaluate what routing uses. No request ever runs this code."""
