"""Judge an answer: its confidence, the heads behind it, agreement of samples."""
