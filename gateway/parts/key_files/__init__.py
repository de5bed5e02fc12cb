"""Keys in files that change while a gateway runs."""
