"""Train and evaluate what the semantic cache uses. No request ever runs this code."""
