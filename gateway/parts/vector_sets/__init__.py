"""Search stored questions by the vector sets of the store's own server."""
