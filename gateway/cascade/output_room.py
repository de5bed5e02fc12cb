"""Lower the limit of a reply to what the model takes: before a call by what is known, after a refusal by what it says.

Many servers refuse a request whose prompt and limit together exceed the context, though the limit says only what a
reply may not exceed. Agents ask for 32,000 tokens with every step, and policies add a limit of their own; so whoever's
limit it is, it is lowered to the room beside the prompt, and `x-tierline-output-limit` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gateway.backends.base import LengthRefused
from gateway.telemetry import names
from routing.features import limit_of, limited, room_needed, within

if TYPE_CHECKING:
    from gateway.backends.base import BackendRequest
    from gateway.request.context import RequestContext
    from gateway.tiers import Endpoint

MOST_LOWERED: Final = 3
"""How often a call is made again with a lower limit: some servers count a prompt only as far as they must."""
_LEAST: Final = 16
"""Tokens of a reply below which a call is not made again: another tier has more room."""
_TEMPLATE: Final = 64
_WITHOUT_LIMIT: Final = {"max_completion_tokens": 0, "max_tokens": 0}


def fitted(request: RequestContext, endpoint: Endpoint) -> Mapping[str, Any]:
    """Return the request's body with its token limit lowered to what the endpoint takes; note the limit if it was.

    A limit of the policy's leaves room for the longest that the prompt may be, as counted by us. The client's own is
    lowered only where the prompt as estimated leaves less: if the server counts more, it says so, see `lowered`.
    """
    lengths, body = endpoint.lengths, request.body
    most, limit = lengths.output, limit_of(body)
    if lengths.context is not None and limit is not None and 2 * limit > lengths.context:
        if request.own_limit:
            left = lengths.context - _estimated(request)
        else:
            left = max(1, lengths.context - room_needed({**body, **_WITHOUT_LIMIT}))
        if left > 0:
            most = left if most is None else min(most, left)
    if most is None or (lower := within(body, most)) is body:
        return body
    request.trace.root.attributes[names.OUTPUT_LIMIT] = most
    return lower


def lowered(
    request: RequestContext, endpoint: Endpoint, asked: BackendRequest, refusal: LengthRefused
) -> BackendRequest | None:
    """Return the call to make after a refusal, with a lower limit of the reply; None if no limit would help.

    The endpoint learns the lengths that the refusal names.
    """
    lengths = refusal.lengths
    endpoint.lengths.learn(lengths.context, lengths.output)
    limit = limit_of(asked.body)
    most = lengths.output
    if lengths.context is not None and (limit is not None or lengths.reply is not None):
        prompt = lengths.prompt
        if prompt is None or lengths.at_least:
            prompt = max(prompt or 0, _estimated(request))
        room = lengths.context - prompt
        if limit is not None and lengths.at_least:
            room = min(room, limit // 2)
        most = room if most is None else min(most, room)
    if most is None or most < _LEAST or (limit is not None and most >= limit):
        return None
    request.trace.root.attributes[names.OUTPUT_LIMIT] = most
    return replace(asked, body=limited(asked.body, most))


def _estimated(request: RequestContext) -> int:
    """Return the estimated tokens of a prompt with its tools, somewhat more than are likely."""
    body = request.body
    tools = room_needed({**_WITHOUT_LIMIT, "messages": [], "tools": body["tools"]}) if body.get("tools") else 0
    return request.features.approx_tokens * 9 // 8 + tools + _TEMPLATE
