"""Ask a backend that gives no log-probabilities the same once more, and compare the answers.

The samples are drawn beside the answer, so they cost tokens but little time. They are never served; what they cost
counts as wasted. One that fails, or is not there when the attempt's time is up, is no evidence and no failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from gateway.backends.base import BackendError
from gateway.cascade.call import BackendCall, backend_request
from gateway.telemetry import names
from gateway.tiers.slot import SlotRequest
from routing.confidence.agreement import Cosine, agreement_of

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from gateway.tiers import Endpoint
    from policies.model import Agreement
    from routing.cascade import Attempt

log = logging.getLogger("tierline.sampling")

_NOT_SAMPLED = ("seed", "n", "logprobs", "top_logprobs")


class Samples:
    """Draw the samples of one attempt. `aclose()` in any case: none of them outlives the attempt."""

    def __init__(
        self, request: RequestContext, endpoint: Endpoint, rule: Agreement, limit_s: float, cosine: Cosine | None
    ) -> None:
        self._request = request
        self._endpoint = endpoint
        self._cosine = cosine
        self._body = _body(request, rule)
        self._until = time.monotonic() + limit_s
        self._tasks = [asyncio.create_task(self._draw(), name="tierline.sample") for _ in range(rule.samples)]

    async def agreement(self, answer: str) -> float | None:
        """Return the agreement of the samples with `answer`, 0..1, once they have come; None if there are none."""
        await asyncio.wait(self._tasks, timeout=max(0.0, self._until - time.monotonic()))
        texts = [task.result() for task in self._tasks if task.done() and not task.exception()]
        return agreement_of(answer, [text for text in texts if text is not None], self._cosine)

    async def aclose(self) -> None:
        """Cancel the samples that have not come yet; each is charged its cost so far."""
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                log.error("a sample for request %s failed", self._request.request_id, exc_info=ended)

    async def _draw(self) -> str | None:
        request, endpoint = self._request, self._endpoint
        if not endpoint.unhindered:
            return None  # a sample takes no slot from an answer, and tries no backend that is ejected
        hop = request.trace.begin(names.SAMPLE)
        slot = endpoint.take(
            SlotRequest(request.policy.surface, request.policy.load.priority, tokens_in=request.features.approx_tokens)
        )
        try:
            with BackendCall(request.ledger, slot, hop, request.features.approx_tokens) as call:
                completion = await call.complete(backend_request(request, hop, self._body))
        except BackendError:
            return None
        content = completion.value["choices"][0]["message"].get("content")
        return content if isinstance(content, str) else None


def samples_for(
    request: RequestContext, attempt: Attempt, endpoint: Endpoint, limit_s: float, cosine: Cosine | None = None
) -> Samples | None:
    """Start the samples that the policy wants, with `limit_s` seconds to come; None if they would give no evidence."""
    rule = request.policy.escalate.agreement
    if rule is None or endpoint.config.logprobs or attempt.final or not attempt.judged:
        return None
    features = request.features
    if features.stream or features.has_tools or features.has_images or request.body.get("n") not in (None, 1):
        return None
    if not request.policy.escalate.when.asks_for_confidence:
        return None
    return Samples(request, endpoint, rule, limit_s, cosine)


def _body(request: RequestContext, rule: Agreement) -> dict[str, Any]:
    """Return the request without the settings that would make the sample equal to the answer."""
    own = request.body.get("temperature")
    temperature = max(rule.temperature, own) if isinstance(own, int | float) else rule.temperature
    return {key: request.body[key] for key in request.body if key not in _NOT_SAMPLED} | {"temperature": temperature}
