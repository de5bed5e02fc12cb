"""Call services for what is not a chat: embeddings, and paths that are passed on."""
