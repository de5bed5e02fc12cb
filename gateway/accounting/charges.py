"""What backend calls cost, from the usage they reported or, marked as estimated, from our own count.

While a request is under way each of its calls is charged once, to the ledger and to the call's hop, and the attempts
whose text was served are noted. `gateway.accounting.finalize` makes the account from both when the reply is out.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.chat.completions import Usage
from gateway.config.schema import Price
from gateway.request.context import RequestContext
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Hop

_PER = 1e-6
_STORED_USAGE: Final = re.compile(rb'"(prompt|completion)_tokens":(\d{1,15})')
_USAGE_BYTES: Final = 1024


def cost(price: Price, usage: Usage) -> float:
    """Return the cost of one call in US dollars."""
    return (usage.tokens_in * price.input + usage.tokens_out * price.output) * _PER


def charge(ledger: Ledger, hop: Hop, price: Price, usage: Usage) -> float:
    """Book one call in the ledger and on its hop, and return its cost in US dollars.

    What of it was wasted is known when the request is over. Called by `gateway.cascade.call.BackendCall` alone.
    """
    dollars = cost(price, usage)
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


def settle(ctx: RequestContext, served: int | None) -> None:
    """Note by its number which attempt's text the client gets; None when it gets none. All other calls are wasted.

    Called once the cascade is over, and once more for every attempt that goes on with the text of another.
    """
    ledger = ctx.ledger
    before = ledger.served or ()
    ledger.served = before if served is None or served in before else (*before, served)


def replayed(ctx: RequestContext, body: bytes) -> None:
    """Note the tokens of a stored answer, a completion as JSON: what the hit has saved is priced by them.

    A call that had begun meanwhile is wasted. Only the end of the body is read, where the usage stands: it may be
    large, and a hit takes a tenth of a millisecond. No string in JSON can hold the bytes looked for, since its quotes
    would be escaped.
    """
    settle(ctx, None)
    start = body.rfind(b'"usage":{')
    if start < 0:
        return
    counts = {kind: int(count) for kind, count in _STORED_USAGE.findall(body, start, start + _USAGE_BYTES)}
    if len(counts) == 2:
        ctx.ledger.answer_tokens_in = counts[b"prompt"]
        ctx.ledger.answer_tokens_out = counts[b"completion"]
