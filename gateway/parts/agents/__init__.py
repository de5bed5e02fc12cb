"""Serve agents and long conversations: sessions and their caps, shorter input, warm prompts, verified drafts."""
