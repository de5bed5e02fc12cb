"""Learn from a surface's own judged traffic: fit, measure on what was held out, and propose only what is better."""
