"""The gateway: an OpenAI-compatible server over tiers of models."""

from gateway.parts.standard import lacking_policy_sections, policy_sections
from policies.added import add_sections

add_sections(policy_sections, lacking_policy_sections)
