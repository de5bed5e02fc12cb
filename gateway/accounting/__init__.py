"""Count what requests cost: charges per call, the final figures of a request, the budget for hedges."""
