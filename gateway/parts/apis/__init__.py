"""Speak the APIs beside chat completions, to clients and to backends."""
