"""Choose an endpoint under load: latency sketches, concurrency limits, selection, budgets."""
