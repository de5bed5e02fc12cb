"""The pages of keys, teams and tenants, which the console shows (the seam `pages`)."""
