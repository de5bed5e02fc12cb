"""The gateway: an OpenAI-compatible server over tiers of models."""

from gateway.parts.standard import lacking_policy_sections, policy_sections
from policies import ADDED

ADDED.find, ADDED.lacking = policy_sections, lacking_policy_sections
