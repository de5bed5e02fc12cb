"""Represent one request and its reply as values, and check requests without I/O."""
