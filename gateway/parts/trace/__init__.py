"""Show recorded requests: what each step did, how long it took, and why it ended as it did."""
