"""The command line: one module per command, and `tierline up` (local/)."""
