"""Evaluate routing on labelled prompts and the semantic cache on labelled pairs: `tierline fit eval`."""
