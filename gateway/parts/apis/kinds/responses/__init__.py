"""Call OpenAI's Responses API."""
