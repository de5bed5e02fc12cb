"""Count what owners of limits use: machines without I/O, and what a worker leases of the store."""
