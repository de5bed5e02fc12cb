"""Let equal requests that are under way share one answer, across workers and replicas."""
