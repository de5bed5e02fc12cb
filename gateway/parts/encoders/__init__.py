"""Read texts by models: MiniLM's vectors, a cross-encoder for pairs of questions, and other languages than English."""
