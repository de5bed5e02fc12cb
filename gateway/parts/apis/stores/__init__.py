"""Keep in the store what clients are given back later."""
