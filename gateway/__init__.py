"""The gateway: an OpenAI-compatible server over tiers of models."""

from functools import partial

from gateway.parts.standard import lacking_policy_sections, policy_sections, provider
from policies import ADDED

ADDED.find, ADDED.lacking = policy_sections, lacking_policy_sections
ADDED.reading = partial(provider, "reading")
