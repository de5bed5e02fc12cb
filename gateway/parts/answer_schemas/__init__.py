"""Check answers, and the arguments of tool calls, against the JSON schemas of their requests."""
