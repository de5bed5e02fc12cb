"""Turn a text into the vector that the classifier and the semantic cache share."""
