"""The gateway: an OpenAI-compatible server over tiers of models."""
