"""Write the log so that nobody waits for it, as text or JSON, with a line for each request."""
