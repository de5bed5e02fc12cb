"""Define the commands of keys, limits and money."""
