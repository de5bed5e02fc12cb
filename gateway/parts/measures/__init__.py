"""Measure answers: labels of a judge, and the quality that these and ratings show, with its interval."""
