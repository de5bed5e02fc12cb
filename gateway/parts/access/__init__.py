"""Who calls: keys, identities and roles, limits and money, and the audit trail."""
