"""Parse questions and answers as text: words, normalized questions, word lists. Pure functions."""
