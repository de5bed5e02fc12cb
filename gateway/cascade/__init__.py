"""Step 9: ask tiers in turn, judge their answers, escalate, stream, and continue a stream that broke."""
