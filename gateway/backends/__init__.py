"""Model endpoints: one file per dialect, over a one-method transport."""
