"""Measure answers at the operator's expense: calls of the gateway's own, labels, and the quality that they show."""
