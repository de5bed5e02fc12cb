"""Try a candidate policy on a share of a surface's traffic, judge it, and take it back or on to the next step."""
