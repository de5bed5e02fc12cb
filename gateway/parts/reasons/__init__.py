"""Say why each hop of a request ended as it did: in its record, and in words."""
