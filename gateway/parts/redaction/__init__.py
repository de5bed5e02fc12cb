"""Remove from recorded texts what must not be kept."""
