"""Talk to Redis or Valkey: the verbs that the cache needs, behind one circuit breaker."""
