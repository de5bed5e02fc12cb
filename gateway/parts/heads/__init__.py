"""Turn the evidence of answers into the probability that they are right, by heads fitted to each model."""
