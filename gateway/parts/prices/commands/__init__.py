"""Define the command `prices`."""
