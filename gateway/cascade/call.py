"""One backend call that feeds a committed stream, and its books. A stream that was gone on with has two."""

from __future__ import annotations

from typing import Any

from gateway.accounting.charges import charge, cost
from gateway.backends.base import BackendError, EventStream
from gateway.chat.completions import Usage, usage_of
from gateway.request.context import RequestContext
from gateway.telemetry import names
from gateway.telemetry.trace import Hop
from gateway.tiers import Slot


class BackendCall:
    """The call, from its first event to its end."""

    __slots__ = (
        "_begun",
        "_closed",
        "_ctx",
        "_given",
        "hop",
        "miscounted",
        "slot",
        "source",
        "tokens",
        "told",
        "usage",
    )

    def __init__(
        self, ctx: RequestContext, slot: Slot, hop: Hop, source: EventStream, *, begun: bool, given: int = 0
    ) -> None:
        """`begun`: its first token has come. `given`: tokens of a text that it was given beside the request's own."""
        self._ctx = ctx
        self._begun = begun
        self._given = given
        self._closed = False
        self.slot = slot
        self.hop = hop
        self.source = source
        self.tokens = 0
        self.usage: Usage | None = None
        self.told: Any = None
        """The usage as the backend put it."""
        self.miscounted = False
        """Whether it said what no usage can be."""

    def count(self, usage: dict[str, Any]) -> None:
        """Takes what the backend says of its usage; nonsense is no word."""
        if (counted := usage_of({"usage": usage})) is not None:
            self.usage, self.told = counted, usage
        else:
            self.miscounted = True

    def used(self) -> Usage:
        """Its usage: the backend's word, or our own count."""
        return self.usage or Usage(self._ctx.features.approx_tokens + self._given, self.tokens, estimated=True)

    def cost_usd(self) -> float:
        """What it has cost so far."""
        return cost(self.slot.endpoint.config.price, self.used())

    def began(self) -> None:
        """The first token is here; a later one changes nothing."""
        if not self._begun:
            self._begun = True
            begun(self.slot, self.hop)

    def close(self, end: str, error: BackendError | None = None) -> None:
        """Ends the call and books it: `end` says how it went; safe to call twice. An error may be somebody's fault."""
        if self._closed:
            return
        self._closed = True
        self.source.close()
        if error is not None:
            self.slot.failed(error)
        elif end == "done":
            self.slot.succeeded(self.used().tokens_out)
            if not self.source.done_seen:
                self.hop.attributes[names.DONE_SYNTHESISED] = True
        else:
            self.slot.free()
        charge(self._ctx, self.hop, self.slot.endpoint.config.price, self.used())
        self.hop.attributes[names.STREAM_END] = end
        self.hop.end(error.error_type if error is not None else None)


def begun(slot: Slot, hop: Hop) -> None:
    """Notes the first token of a call, and how long it took since the call went out."""
    slot.began()
    hop.attributes[names.TTFT] = round((hop.seconds - slot.queued_s) * 1000, 2)
