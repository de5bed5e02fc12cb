"""Keep one append-only trail of all changes: policies, keys, teams, budgets, the config, and who signed in."""
