"""Test what is known of hosted models."""
