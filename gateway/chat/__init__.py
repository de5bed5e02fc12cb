"""Read completions and chunks: their shapes, the evidence in them, the text of a stream."""
