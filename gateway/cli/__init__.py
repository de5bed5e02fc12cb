"""The command line: `main` finds the module of a command, here or in a part, and runs it."""
