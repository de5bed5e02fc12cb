"""Ask a backend that gives no log-probabilities the same once more, and compare the answers.

The samples are drawn beside the answer, so they cost tokens but little time. They are never served; what they cost
counts as wasted. One that fails, or is not there when the attempt's time is up, is no evidence and no failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway.backends.base import BackendError, BackendRequest
from gateway.backends.server_forms import always_thinks
from gateway.cascade.call import BackendCall, backend_request
from gateway.chat.completions import evidence_of
from gateway.parts.agents.agreement import ComparedAnswer, Cosine, agreement_of
from gateway.telemetry import names
from gateway.tiers.slot import SlotRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.request.context import RequestContext
    from gateway.tiers import Endpoint
    from policies.model import Agreement
    from routing.confidence.judge import Evidence

log = logging.getLogger("tierline.sampling")

_NOT_SAMPLED = ("seed", "n", "logprobs", "top_logprobs", "stream", "stream_options")
_THINKS = ("reasoning_effort", "reasoning", "thinking", "output_config")


class Samples:
    """Draw the samples of one attempt. `aclose()` in any case: none of them outlives the attempt."""

    def __init__(
        self,
        request: RequestContext,
        endpoint: Endpoint,
        rule: Agreement,
        limit_s: float,
        cosine: Cosine | None,
        owes: Callable[[str], int],
    ) -> None:
        """Draw them; `owes` returns the completion tokens that one is charged which is given up before it has come."""
        self._request = request
        self._endpoint = endpoint
        self._cosine = cosine
        self._owes = owes
        self._body = _body(request, rule)
        self._began, self._limit_s = time.monotonic(), limit_s
        self._tasks = [asyncio.create_task(self._draw(), name="tierline.sample") for _ in range(rule.samples)]

    async def agreement(self, evidence: Evidence, within_s: float) -> float | None:
        """Return the agreement of the samples with an answer, 0..1, once they have come; None if there are none.

        They are waited for as long again as the answer took, or as a stream is held if that is longer. With an answer's
        beginning, so much of them is compared as it has words.
        """
        took_s, hold_s = time.monotonic() - self._began, self._request.policy.escalate.stream.hold_max
        timeout_s = max(0.0, min(within_s, self._limit_s - took_s, max(took_s, hold_s)))
        await asyncio.wait(self._tasks, timeout=timeout_s)
        answers = [answer for task in self._tasks if task.done() and not task.exception() and (answer := task.result())]
        calls = list(zip(evidence.tool_names, evidence.tool_arguments, strict=True))
        return agreement_of(ComparedAnswer(evidence.text, calls), answers, self._cosine, complete=evidence.complete)

    async def aclose(self) -> None:
        """Cancel the samples that have not come yet; each is charged its cost so far."""
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                log.error("a sample for request %s failed", self._request.request_id, exc_info=ended)

    async def _draw(self) -> ComparedAnswer | None:
        request, endpoint = self._request, self._endpoint
        if not endpoint.unhindered:
            return None  # a sample takes no slot from an answer, and tries no backend that is ejected
        hop = request.trace.begin(names.SAMPLE)
        slot = endpoint.take(
            SlotRequest(request.policy.surface, request.policy.load.priority, tokens_in=request.features.approx_tokens)
        )
        try:
            with BackendCall(request.ledger, slot, hop, request.features.approx_tokens, self._owes) as call:
                asked = backend_request(request, hop, self._body, endpoint=endpoint)
                completion = await call.complete(replace(asked, body=self._limited(asked)))
        except BackendError:
            return None
        drawn = evidence_of(completion.value)
        calls = list(zip(drawn.tool_names, drawn.tool_arguments, strict=True))
        return ComparedAnswer(drawn.text, calls) if drawn.text or calls else None

    def _limited(self, asked: BackendRequest) -> dict[str, Any]:
        """Return the body with the sample's temperature, as one that is set would make it equal to the answer.

        Of a stream only so much is drawn as is held: one and a half times the tokens, since their number is an
        estimate. A model that thinks first spends a limit on its thoughts, so it keeps the request's own.
        """
        body, config = {**asked.body, "temperature": self._body["temperature"]}, self._endpoint.config
        own = {} if asked.native is None else asked.native.body
        thinks = "temperature" in config.omit or always_thinks(config.model)
        if self._request.features.stream and not (thinks or any(body.get(key) or own.get(key) for key in _THINKS)):
            body.pop("max_tokens", None)
            body["max_completion_tokens"] = self._request.policy.escalate.stream.hold_tokens * 3 // 2
        return body


def _body(request: RequestContext, rule: Agreement) -> dict[str, Any]:
    """Return the request without the settings that would make the sample equal to the answer."""
    own = request.body.get("temperature")
    temperature = max(rule.temperature, own) if isinstance(own, int | float) else rule.temperature
    return {key: request.body[key] for key in request.body if key not in _NOT_SAMPLED} | {"temperature": temperature}
