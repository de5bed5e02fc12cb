"""`python -m tests.bench`: what the gateway costs, beside nginx and a bare proxy, in one interleaved run."""
