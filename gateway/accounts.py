"""Money: what a backend call cost, from the usage it reported or, flagged, from our own count."""

from __future__ import annotations

from gateway.completions import Usage
from gateway.context import RequestContext
from gateway.settings import Price
from gateway.telemetry import names
from gateway.telemetry.trace import Hop

_PER = 1e-6


def cost(price: Price, usage: Usage) -> float:
    """Dollars."""
    return (usage.tokens_in * price.input + usage.tokens_out * price.output) * _PER


def charge(ctx: RequestContext, hop: Hop, price: Price, usage: Usage) -> float:
    """Books one call in the ledger and on its span; its cost in dollars. What of it was wasted is known at the end."""
    dollars = cost(price, usage)
    ledger = ctx.ledger
    ledger.cost_usd += dollars
    ledger.tokens_in += usage.tokens_in
    ledger.tokens_out += usage.tokens_out
    attributes = hop.attributes
    attributes[names.GEN_AI_TOKENS_IN] = usage.tokens_in
    attributes[names.GEN_AI_TOKENS_OUT] = usage.tokens_out
    attributes[names.COST] = dollars
    if usage.estimated:
        ledger.usage_estimated = True
        attributes[names.USAGE_ESTIMATED] = True
    return dollars


def estimate(ctx: RequestContext, tokens_out: int) -> Usage:
    """Usage where the backend gave none: a quarter of the prompt's characters, and the tokens that were seen."""
    return Usage(ctx.features.approx_tokens, tokens_out, estimated=True)
