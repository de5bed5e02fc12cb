"""Say whose entries are whose: scopes, their generations, tags, and the list of what each scope holds."""
