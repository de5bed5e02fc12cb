"""Kinds of backend that need nothing but this machine."""
