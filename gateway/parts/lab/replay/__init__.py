"""Replay recorded requests through another policy: what would have been decided, exactly, and what is estimated."""
