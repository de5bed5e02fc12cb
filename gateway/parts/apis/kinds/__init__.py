"""Kinds of backend that are called by these APIs, a folder each."""
