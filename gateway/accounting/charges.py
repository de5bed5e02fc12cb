"""Money: what a backend call cost, from the usage it reported or, flagged, from our own count.

While a request is under way its calls are charged here, each to its hop, and it is said whose text was served; from
that `gateway.accounting.finalize` makes the account when the reply is out.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.chat.completions import Usage
from gateway.config.schema import Price
from gateway.request.context import RequestContext
from gateway.telemetry import names
from gateway.telemetry.trace import Hop

_PER = 1e-6
_STORED_USAGE: Final = re.compile(rb'"(prompt|completion)_tokens":(\d{1,15})')
_USAGE_BYTES: Final = 1024


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
    # A hop that is charged in parts keeps the sum, so that calls always add up to the request.
    said = hop.attributes
    said[names.GEN_AI_TOKENS_IN] = said.get(names.GEN_AI_TOKENS_IN, 0) + usage.tokens_in
    said[names.GEN_AI_TOKENS_OUT] = said.get(names.GEN_AI_TOKENS_OUT, 0) + usage.tokens_out
    said[names.COST] = said.get(names.COST, 0.0) + dollars
    if usage.estimated:
        ledger.usage_estimated = True
        said[names.USAGE_ESTIMATED] = True
    return dollars


def settle(ctx: RequestContext, served: int | None) -> None:
    """Says which attempt's text the client gets, by its number; None when it gets none. All other calls are wasted.

    To be called once the cascade is over, and once more for every attempt that goes on with the text of another.
    """
    ledger = ctx.ledger
    known = ledger.served or ()
    ledger.served = known if served is None or served in known else (*known, served)


def replayed(ctx: RequestContext, body: bytes) -> None:
    """Notes the tokens of a stored answer, a completion as JSON: what the hit has saved is priced by them.

    A call that had begun meanwhile is wasted. Only the end of the body is looked at, where the usage stands: it may be
    large, and a hit takes a tenth of a millisecond. No string in JSON can hold the bytes looked for, since its quotes
    would be escaped.
    """
    settle(ctx, None)
    start = body.rfind(b'"usage":{')
    if start < 0:
        return
    found = {kind: int(count) for kind, count in _STORED_USAGE.findall(body, start, start + _USAGE_BYTES)}
    if len(found) == 2:
        ctx.ledger.answer_tokens_in = found[b"prompt"]
        ctx.ledger.answer_tokens_out = found[b"completion"]


def estimate(ctx: RequestContext, tokens_out: int) -> Usage:
    """Usage where the backend gave none: a quarter of the prompt's characters, and the tokens that were seen."""
    return Usage(ctx.features.approx_tokens, tokens_out, estimated=True)
