"""One script a client: run by its environment's own Python, with the gateway's URL in TIERLINE_URL."""
