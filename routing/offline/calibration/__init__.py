"""From labelled requests to thresholds whose claim holds with a stated confidence. Offline, and pure."""
