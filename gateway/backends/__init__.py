"""Call model endpoints that speak chat completions, over a transport of one method; parts add further dialects."""
