"""Steps 1 to 3 and 10: middleware, routes, the request's context, and the reply on the wire."""
