"""Rules, each with the change of a line that breaks it and the test that must then fail."""
