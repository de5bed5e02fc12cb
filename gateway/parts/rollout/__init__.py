"""Change policies over time: versions in the store, candidates on a share of requests, and what judges them."""
