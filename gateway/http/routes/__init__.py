"""Define the HTTP routes, one file for each API."""
