"""Talk to Redis or Valkey: the operations that the cache needs, behind one circuit breaker per server."""
