"""Serve what is not hot with FastAPI: the models, and routes of other parts."""
