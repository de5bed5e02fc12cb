"""Serve the admin API: keys, teams, budgets, the audit trail and the cache."""
