"""Answer from a script in the config, without a model."""
