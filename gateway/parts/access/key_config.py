"""Define the config of keys: whether one is demanded, the terms of tenants and teams, and what holds in trouble."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.parts.access.quotas.terms import NO_TERMS, Terms
from policies.validation import Section


class OwnerTerms(Section):
    """What a team or a tenant may use, and each of its end users and sessions."""

    limits: Terms = NO_TERMS
    per_user: Terms = NO_TERMS
    """Of each end user that requests name: `user`, `safety_identifier`, or Anthropic's `metadata.user_id`."""
    per_session: Terms = NO_TERMS


class UnknownPrice(Section):
    """The cost that budgets assume for a call whose price is unknown."""

    ceiling: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
    """US dollars."""


class KeysConfig(Section):
    """Which requests need a key, and how limits are applied."""

    required: bool = False
    """Whether each request needs a key, of the store, of a tenant or of an identity; with `tenants` it always does."""
    when_store_is_down: Literal["open", "closed"] = "open"
    """What becomes of requests and tokens beyond the leases of a worker while the store does not answer: let through,
    or refused. Money beyond its lease is refused either way."""
    unknown_price: Literal["refuse"] | UnknownPrice = "refuse"
    """What becomes of requests with a budget of money that may call a model of unknown price."""
