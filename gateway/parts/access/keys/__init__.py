"""Know who calls: keys in the store, tenants in the config, and identities of a company."""
