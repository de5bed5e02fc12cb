"""Call the decisions API, for judges of drafts."""
