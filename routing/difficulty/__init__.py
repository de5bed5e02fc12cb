"""Judge a request before anyone answers it: how likely each tier is to be right."""
