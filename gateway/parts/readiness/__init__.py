"""Say in `/readyz` what is degraded, and how each tier and backend stands."""
