"""Find what is doubtful or wrong in policies that load, and what to write instead."""
