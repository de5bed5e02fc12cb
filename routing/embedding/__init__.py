"""Turn a text into the unit vector that the difficulty classifier and the semantic cache share."""
