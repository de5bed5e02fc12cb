"""Test keys whose files change."""
