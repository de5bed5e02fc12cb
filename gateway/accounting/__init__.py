"""Compute what requests cost: the charge of each call, the final figures of a request, the budget for hedges."""
