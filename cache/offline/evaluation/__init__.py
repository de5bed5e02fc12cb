"""What the cache is worth on labelled pairs of questions, and how sure that is. Offline, and pure."""
