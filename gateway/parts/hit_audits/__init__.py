"""Keep each surface's share of wrong semantic hits within the policy's bound, by audits and feedback."""
