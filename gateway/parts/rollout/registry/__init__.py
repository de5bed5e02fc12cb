"""Keep the versions of policies in the store, which of them are in force, and who changed that when and why."""
