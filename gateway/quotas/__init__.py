"""Hold every key, team, tenant, end user and session to its limits and budgets, over all workers together."""
