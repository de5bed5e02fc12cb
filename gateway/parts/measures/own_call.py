"""Call a model for the operator's own purposes: after the reply, in nobody's ledger, and only where there is room.

Such a call goes to a backend with room to spare, whose price is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.backends.base import BackendError, BackendRequest, TimedOut
from gateway.cascade.call import BackendCall
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Hop
from gateway.tiers.slot import SlotRequest
from routing.features import estimated_tokens, text_of

if TYPE_CHECKING:
    from gateway.tiers import Endpoint

_BUSY: Final = 0.75
"""Share of a backend's slots that may be taken, with one more call, for it to count as quiet."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The whole answer of a model; `value` is None if there is none, and `error` then says why, as metrics do."""

    value: Mapping[str, Any] | None
    cost_usd: float
    error: str = ""


def is_quiet(endpoint: Endpoint) -> bool:
    """Return whether a call can go out at once and leaves a quarter of the slots; an idle single slot will do."""
    if not endpoint.config.configured or endpoint.unavailable() or not endpoint.unhindered:
        return False
    return endpoint.in_flight + 1 <= max(1, int(endpoint.capacity * _BUSY))


async def call_model(endpoint: Endpoint, surface: str, request: BackendRequest, limit_s: float) -> ModelAnswer:
    """Return the answer of a backend to a request of the gateway's own, with a slot of batch priority.

    The call belongs to no request: its ledger and its hop are not recorded. Raises CancelledError only.
    """
    texts = [text_of(message.get("content"))[0] for message in request.body["messages"]]
    tokens_in = int(sum(map(estimated_tokens, texts)))
    slot = endpoint.take(SlotRequest(surface, "batch", tokens_in=tokens_in))
    with BackendCall(Ledger("own"), slot, Hop([], "own"), tokens_in) as call:
        try:
            async with asyncio.timeout(limit_s):
                value = (await call.complete(request)).value
        except BackendError as error:
            call.close(error)
            return ModelAnswer(None, call.cost_usd, error.error_type)
        except TimeoutError:
            call.close("cancelled")
            return ModelAnswer(None, call.cost_usd, TimedOut.error_type)
    return ModelAnswer(value, call.cost_usd)


def text_of_answer(completion: Mapping[str, Any]) -> str | None:
    """Return the text of a completion's first choice; None if it has none."""
    message = completion["choices"][0].get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else None
