"""Know what particular servers and models want or say otherwise than plain chat completions have it."""
