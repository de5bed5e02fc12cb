"""Estimate how difficult a request is before calling any tier: how likely each tier is to be right."""
