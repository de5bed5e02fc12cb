"""Judge an answer: its confidence, and faults in its structure. Heads and second samples are handed in."""
