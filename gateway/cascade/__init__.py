"""Step 9: ask tiers in turn, judge their answers, escalate and stream; a stream that breaks may be handed on."""
