"""Give a backend fewer calls at a time while it slows down under its load."""
