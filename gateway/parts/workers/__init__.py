"""Serve in several processes on one machine: start them, replace those that end, and stop them together."""
