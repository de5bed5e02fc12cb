"""See what the cache holds, and take answers out of it."""
