"""Ask the model of `tierline fit collect`, with retries, and grade its answers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson

from gateway.backends.base import (
    Backend,
    BackendError,
    BackendRequest,
    BadStatus,
    Completion,
    LengthRefused,
    TimedOut,
    Unreachable,
)
from gateway.chat.completions import token_entries, top_logprobs
from gateway.chat.usage import usage_of
from gateway.parts.fit.commands._collect_rows import CollectTask
from gateway.parts.fit.datasets import Json
from gateway.parts.fit.grading import grade

_CALL_S = 300.0
_TRIES = 6
_FIRST_PAUSE_S = 0.5
_FAILURES_TO_STOP = 5
_ALTERNATIVES: Final = 5
_WRONG_SETUP: Final = frozenset({401, 402, 403, 404, 405})

OnAnswer = Callable[[Any, Json], None]
OnFailure = Callable[[Any, str], None]
WithFields = Callable[[BackendRequest], BackendRequest]


class Stopped(Exception):
    """Raised when asking further prompts is useless; the message says why, and what to do."""


class Respondent:
    """Ask one model at an OpenAI-compatible endpoint, at temperature 0, for answers with log-probabilities.

    `without_logprobs` counts the answers that came without log-probabilities.
    """

    def __init__(
        self, backend: Backend, base_url: str, max_tokens: int, with_fields: WithFields = lambda asked: asked
    ) -> None:
        """`with_fields` puts what a backend's config sets into a request."""
        self.without_logprobs = 0
        self._backend = backend
        self._base_url = base_url
        self._with_fields = with_fields
        self._wish = {"temperature": 0, "max_tokens": max_tokens}
        self._ask_logprobs: Json = {"logprobs": True, "top_logprobs": _ALTERNATIVES}
        self._failures = 0

    async def answer_all(
        self, tasks: Iterable[Any], concurrency: int, on_answer: OnAnswer, on_failure: OnFailure
    ) -> None:
        """Ask the prompt of each task, `concurrency` at a time, and report each answer or failure as it arrives.

        Raises Stopped when the endpoint cannot be reached, refuses the key or model, or fails five prompts in a row.
        """
        waiting = iter(tasks)

        async def work() -> None:
            for task in waiting:
                try:
                    answer = await self._answer(task)
                except BackendError as error:
                    self._judge(error)
                    on_failure(task, _message_of(error))
                else:
                    self._failures = 0
                    on_answer(task, answer)

        workers = [asyncio.create_task(work()) for _ in range(concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _judge(self, error: BackendError) -> None:
        """Raise Stopped if further prompts would fail in the same way."""
        self._failures += 1
        if isinstance(error, Unreachable):
            raise Stopped(f"no model answers at {self._base_url} ({error}): is it running?") from None
        if isinstance(error, BadStatus) and error.status in _WRONG_SETUP:
            message = f"{self._base_url} refuses: {_message_of(error)}; check --base-url, --model and --key-env"
            raise Stopped(message) from None
        if self._failures >= _FAILURES_TO_STOP:
            raise Stopped(f"{self._base_url} failed {self._failures} prompts in a row: {_message_of(error)}") from None

    async def _answer(self, task: CollectTask) -> Json:
        body = {"messages": [{"role": "user", "content": task.prompt}], **self._wish}
        asked = dict(self._ask_logprobs)
        try:
            completion, latency_s = await self._complete(body | asked)
        except BadStatus as error:
            about_fields = error.about_the_request and not isinstance(error, LengthRefused)
            if not about_fields or not asked or error.status in _WRONG_SETUP:
                raise
            # Some endpoints refuse a request for log-probabilities; a failure without them too has another cause.
            completion, latency_s = await self._complete(body)
            self._ask_logprobs = {}
        answer = _recorded(completion.value, task, latency_s)
        self.without_logprobs += "logprobs" not in answer
        return answer

    async def _complete(self, body: Mapping[str, Any]) -> tuple[Completion, float]:
        """Return the completion and the seconds it took.

        Temporary failures are retried up to five times, after a doubling pause or the one that the endpoint asks for.
        """
        for pause_s in (*(_FIRST_PAUSE_S * 2**n for n in range(_TRIES - 1)), None):
            started = time.perf_counter()
            try:
                async with asyncio.timeout(_CALL_S):
                    asked = self._with_fields(BackendRequest(body, ask_logprobs=False))
                    return await self._backend.complete(asked), time.perf_counter() - started
            except TimeoutError:
                raise TimedOut(f"no answer within {_CALL_S:g} s") from None
            except BackendError as error:
                refused = isinstance(error, LengthRefused) or (
                    isinstance(error, BadStatus) and (error.about_the_request or error.status in _WRONG_SETUP)
                )
                if refused or pause_s is None:
                    raise
                asked_s = error.retry_after_s if isinstance(error, BadStatus) else None
                await asyncio.sleep(pause_s if asked_s is None else min(asked_s, _CALL_S))
        raise AssertionError("the last try returns or raises")


def _recorded(completion: Mapping[str, Any], task: CollectTask, latency_s: float) -> Json:
    """Return the answer as stored in a row; fields that the endpoint did not send are left out."""
    choice = completion["choices"][0]
    text = choice["message"].get("content")
    text = text if isinstance(text, str) else ""
    usage = usage_of(completion)
    told = token_entries(completion, tops_asked=True)
    logprobs = [float(entry["logprob"]) for entry in told]
    top = [[round(value, 4) for value in sorted(found, reverse=True)] for found in top_logprobs(told, _ALTERNATIVES)]
    answer = {
        "correct": int(grade(text, task.accepted, task.grade)),
        "confidence": round(math.fsum(logprobs) / len(logprobs), 6) if logprobs else None,
        "latency_ms": round(latency_s * 1000, 1),
        "tok_in": usage.tokens_in if usage else None,
        "tok_out": usage.tokens_out if usage else None,
        "finish_reason": choice.get("finish_reason"),
        "logprobs": [round(logprob, 4) for logprob in logprobs] or None,
        "top_logprobs": top if any(top) else None,
        "answer": text,
    }
    return {key: value for key, value in answer.items() if value is not None}


def _message_of(error: BackendError) -> str:
    """Return the error's message, with the endpoint's own if it sent one (at most 200 characters)."""
    if not isinstance(error, BadStatus):
        return str(error) or error.error_type
    try:
        message = orjson.loads(error.body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = error.body.decode("utf-8", "replace")
    words = " ".join(str(message).split())
    return f"status {error.status}" + (f": {words[:200]}" if words else "")
