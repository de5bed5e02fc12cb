"""Steps 5 to 7 and 11: look answers up, share one under way, embed the question, write behind."""
