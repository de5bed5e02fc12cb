"""Determine who shares entries with whom: scopes, generations, tags, and the list of each scope's entries."""
