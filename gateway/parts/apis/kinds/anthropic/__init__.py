"""Call Anthropic's Messages API: at Anthropic, on Bedrock and Vertex, and at the many others that offer it."""
