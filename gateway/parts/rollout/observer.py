"""Draw the answers that are compared with another tier's (`learn`), and the requests that run again as shadows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.caching.write_behind import Take
from gateway.parts.rollout.policy import RolloutSections
from gateway.telemetry.ledger import PLAYGROUND

if TYPE_CHECKING:
    from gateway.parts.rollout.comparer import Comparer
    from gateway.parts.rollout.shadow import ShadowRunner
    from gateway.request.context import RequestContext


class AnswerDraws:
    """The comparer and the shadows of one worker: see `gateway.caching.write_behind.Observer`."""

    keys: Final = ("learn",)

    def __init__(self, comparer: Comparer, shadows: ShadowRunner) -> None:
        self.comparer = comparer
        self._shadows = shadows

    def wants(self, request: RequestContext) -> Sequence[Take]:
        """Return what chance draws this answer for."""
        if request.ledger.arm == PLAYGROUND:
            return ()
        learn = request.policy.of(RolloutSections).learn
        takes: list[Take] = []
        shadow = self._shadows.drawn(request)
        if learn is not None and self.comparer.draws(learn):
            takes.append(Take(whole=True, served=self.comparer.draw))
        if shadow is not None:
            judged = self._shadows.judge_of(request, shadow) is not None
            takes.append(Take(judged, partial(self._shadows.offer, shadow)))
        return takes

    def start(self) -> None:
        """Start the tasks of both."""
        self.comparer.start()
        self._shadows.start()

    async def aclose(self) -> None:
        """Stop at once; what waits is dropped."""
        await self._shadows.aclose()
        await self.comparer.aclose()
