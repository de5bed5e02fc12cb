"""Measure how far two answers to the same request agree: evidence where a backend gives no log-probabilities.

A model that knows an answer tends to repeat it; one that guesses answers differently the next time (self-consistency:
Wang et al., 2022). Whether two answers say the same, the pair model of the worker says together with what the words
tell (`gateway.parts.measures.likeness`), in a thread of its own and for at most _COMPARED_S. Without the model, of what
it cannot read and where it would be late, words alone speak where they are sure: texts that are equal but for case,
punctuation and articles, or the same JSON, agree; other numbers do not. Of all else there is no signal.

Of answers that call tools the calls are compared, each with the one that is most alike, and what is said around them is
not: the same tool with the same arguments is 1, another tool is 0, and between them lies the mean over the arguments.
Arguments in several words agree by the F1 of these, as in reading-comprehension scoring (SQuAD).
An answer that calls something and one that does not have nothing in common.

The samples are drawn beside the answer, so they cost tokens but little time. They are never served; what they cost
counts as wasted. One that fails, or is not there when the attempt's time is up, is no evidence and no failure.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, product, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unicodedata import normalize

import orjson

from gateway.backends.base import BackendError, BackendRequest
from gateway.backends.server_forms import always_thinks
from gateway.cascade.call import BackendCall, backend_request
from gateway.chat.completions import evidence_of
from gateway.parts.measures.likeness import AgreementScore, AnswerLikeness, by_words
from gateway.telemetry import names
from gateway.tiers.slot import SlotRequest
from routing.features import SPACELESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.request.context import RequestContext
    from gateway.tiers import Endpoint
    from policies.model import Agreement
    from routing.confidence.judge import Evidence


log = logging.getLogger("tierline.sampling")

_NOT_SAMPLED = ("seed", "n", "logprobs", "top_logprobs", "stream", "stream_options")
_COMPARED_S: Final = 0.5
"""Seconds that a comparison of texts may take at most."""
_KEPT_S: Final = 0.15
_FOR_IT: Final = 0.25
"""What is kept for it of the time that a sample is waited for: so many seconds, and this share at most."""
_MOST_WAITING: Final = 8
_THINKS = ("reasoning_effort", "reasoning", "thinking", "output_config")


class TextComparer:
    """Compare the texts of answers off the event loop, one after the other, for all requests of one worker."""

    def __init__(self, engine: AnswerLikeness) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tierline-agreement")
        self._waiting = 0

    async def compare(self, pairs: Sequence[tuple[str, str]], question: str, limit_s: float) -> list[AgreementScore]:
        """Return how likely the texts of each pair say the same, within `limit_s` seconds or by words that are sure."""
        sure = [_by_form(one, other, question) for one, other in pairs]
        if None not in sure:
            return [found for found in sure if found is not None]
        if self._waiting >= _MOST_WAITING or limit_s <= 0:
            return [found or AgreementScore(None, "the cross-encoder is busy") for found in sure]
        self._waiting += 1
        work = asyncio.get_running_loop().run_in_executor(self._thread, partial(self._compared, pairs, question, sure))
        work.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(work, min(limit_s, _COMPARED_S))
        except TimeoutError:
            return [found or AgreementScore(None, "the cross-encoder is late") for found in sure]
        except Exception as error:
            log.exception("answers cannot be compared")
            return [found or AgreementScore(None, f"the cross-encoder failed: {error}") for found in sure]

    def _compared(
        self, pairs: Sequence[tuple[str, str]], question: str, sure: Sequence[AgreementScore | None]
    ) -> list[AgreementScore]:
        return [
            self._engine.compare(*pair, question) if found is None else found
            for pair, found in zip(pairs, sure, strict=True)
        ]

    def _done(self, _work: object) -> None:
        self._waiting -= 1


def _by_form(one: str, other: str, question: str) -> AgreementScore | None:
    return AgreementScore(1.0, "words") if _same_json(one, other) else by_words(one, other, question)


class Samples:
    """Draw the samples of one attempt. `aclose()` in any case: none of them outlives the attempt."""

    def __init__(
        self,
        request: RequestContext,
        endpoint: Endpoint,
        rule: Agreement,
        limit_s: float,
        comparer: TextComparer,
        owes: Callable[[str], int],
    ) -> None:
        """Draw them; `owes` returns the completion tokens that one is charged which is given up before it has come."""
        self._request = request
        self._endpoint = endpoint
        self._comparer = comparer
        self._owes = owes
        self._body = _body(request, rule)
        self._began, self._limit_s = time.monotonic(), limit_s
        self._tasks = [asyncio.create_task(self._draw(), name="tierline.sample") for _ in range(rule.samples)]

    async def agreement(self, evidence: Evidence, within_s: float) -> AgreementScore:
        """Return the agreement of the samples with an answer, once they have come, and who says so.

        They are waited for as long again as the answer took, or as a stream is held if that is longer. With an answer's
        beginning, so much of them is compared as it has words.
        """
        began, took_s = time.monotonic(), time.monotonic() - self._began
        hold_s = self._request.policy.escalate.stream.hold_max
        left_s = min(within_s, self._limit_s - took_s)
        for_it_s = min(_KEPT_S, max(0.0, left_s) * _FOR_IT)
        await asyncio.wait(self._tasks, timeout=max(0.0, min(left_s - for_it_s, max(took_s, hold_s))))
        answers = [answer for task in self._tasks if task.done() and not task.exception() and (answer := task.result())]
        calls = list(zip(evidence.tool_names, evidence.tool_arguments, strict=True))
        answer = ComparedAnswer(evidence.text, calls)
        pairs = texts_compared(answer, answers, complete=evidence.complete)
        left_s -= time.monotonic() - began
        said = await self._comparer.compare(pairs, self._request.features.text, left_s) if pairs else []
        by = {pair: found.score for pair, found in zip(pairs, said, strict=True)}
        score = agreement_of(answer, answers, lambda *pair: by.get(pair), complete=evidence.complete)
        if score is None:
            return AgreementScore(None, next((found.by for found in said if found.score is None), "no sample has come"))
        who = {found.by for found in said if found.score is not None} or {"calls"}
        return AgreementScore(score, "pair_model" if "pair_model" in who else who.pop())

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
        return ComparedAnswer(drawn.text, calls, drawn.finish_reason == "length") if drawn.text or calls else None

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


Compare = Callable[[str, str], float | None]
"""How far two texts say the same, 0..1; None where that is not known."""

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_WORD = re.compile(rf"{SPACELESS}|[^\W{SPACELESS[1:]}+")
_NAME = re.compile(rf"[^\s{SPACELESS[1:]}*")
_ARTICLES = frozenset({"a", "an", "the"})
_MAX_CHARS = 20_000
"""Maximum number of characters compared of each answer."""
_DEEPEST = 6


class ComparedAnswer(NamedTuple):
    """What a model said, and the tools that it called with it: the name and the arguments, as JSON, of each.

    `cut`: it said more than the tokens that it was allowed.
    """

    text: str
    calls: Sequence[tuple[str, str]] = ()
    cut: bool = False

    def so_far(self) -> ComparedAnswer | None:
        """Return the answer without its last word, which may be incomplete; None if nothing is left."""
        if not self.calls:
            text = _whole_words(self.text)
            return ComparedAnswer(text) if text else None
        *calls, (name, arguments) = self.calls
        return ComparedAnswer(self.text, [*calls, (name, _whole_words(arguments) or "{")])


def _whole_words(text: str) -> str:
    *_, last = (None, *_WORD.finditer(text))
    return text if last is None or last.end() < len(text) else text[: last.start()].rstrip()


def _first_words(text: str, like: str) -> str:
    """Return so much of a text as the other one has words."""
    ends = [word.end() for word in islice(_WORD.finditer(text), len(_WORD.findall(like)))]
    return text[: ends[-1]] if ends else ""


def agreement_of(
    answer: ComparedAnswer, samples: Sequence[ComparedAnswer], compare: Compare, *, complete: bool = True
) -> float | None:
    """Return the mean agreement of `answer` with each of `samples`, 0..1; None without a sample that can be compared.

    Texts are compared by `compare`. Of an answer that is not `complete` the samples' beginnings are compared. One that
    has called nothing yet may still do what a sample does that calls something.
    """
    told = [
        _calls_agree(*pair, complete) if pair[0].calls or pair[1].calls else compare(pair[0].text, pair[1].text)
        for pair in _comparable(answer, samples, complete)
    ]
    scores = [score for score in told if score is not None]
    return math.fsum(scores) / len(scores) if scores else None


def texts_compared(
    answer: ComparedAnswer, samples: Sequence[ComparedAnswer], *, complete: bool
) -> list[tuple[str, str]]:
    """Return the texts that `agreement_of` compares, each pair once."""
    pairs = _comparable(answer, samples, complete)
    return list(dict.fromkeys((one.text, other.text) for one, other in pairs if not (one.calls or other.calls)))


def _comparable(
    answer: ComparedAnswer, samples: Sequence[ComparedAnswer], complete: bool
) -> list[tuple[ComparedAnswer, ComparedAnswer]]:
    """Return the answer with each sample, both as far as they are compared."""
    if complete:
        return [
            _as_far_as(answer._replace(text=answer.text[:_MAX_CHARS]), sample._replace(text=sample.text[:_MAX_CHARS]))
            for sample in samples
        ]
    begun = answer.so_far()
    if begun is None:
        return []
    return [
        _as_far_as(
            begun,
            sample if begun.calls or sample.calls else sample._replace(text=_first_words(sample.text, begun.text)),
        )
        for sample in samples
        if begun.calls or not sample.calls
    ]


def _as_far_as(answer: ComparedAnswer, sample: ComparedAnswer) -> tuple[ComparedAnswer, ComparedAnswer]:
    """Return so much of the text of an answer as a sample has that was cut, and the sample."""
    if not sample.cut or answer.calls or sample.calls:
        return answer, sample
    text = _whole_words(sample.text) or sample.text
    return answer._replace(text=_first_words(answer.text, text) or answer.text), sample._replace(text=text)


def _calls_agree(one: ComparedAnswer, other: ComparedAnswer, complete: bool) -> float:
    most = max(len(one.calls), len(other.calls)) if complete else len(one.calls)
    in_order = sum(len(arguments) for _, arguments in (*one.calls, *other.calls)) > _MAX_CHARS  # every pair takes long
    pairs = product(enumerate(one.calls), enumerate(other.calls))
    alike = [(_calls_alike(mine, theirs), -i, j) for (i, mine), (j, theirs) in pairs if i == j or not in_order]
    total, taken = 0.0, set[int]()
    for value, i, j in sorted(alike, key=lambda pair: (-pair[0], -pair[1], pair[2])):
        if taken.isdisjoint((i - 1, j)):
            taken |= {i - 1, j}
            total += value
    return total / most


def _calls_alike(mine: tuple[str, str], theirs: tuple[str, str]) -> float:
    (name, arguments), (other, others) = mine, theirs
    if name != other:
        return 0.0
    try:
        given = orjson.loads(others or b"{}")
    except orjson.JSONDecodeError:  # it was cut off
        return similarity(arguments, others)
    try:
        return _values_alike(orjson.loads(arguments or b"{}"), given)
    except orjson.JSONDecodeError:  # it is still being written
        begun = _begun_arguments(arguments)
    if begun is None or not isinstance(given, dict):
        return similarity(arguments, _first_words(others, arguments))
    last, given = next(reversed(begun), ""), {key: given.get(key) for key in begun}
    if isinstance(text := given.get(last), str):
        given[last], begun[last] = (_first_words(answer, str(begun[last])) for answer in (text, str(begun[last])))
    return _values_alike(begun, given)


def _begun_arguments(text: str) -> dict[str, Any] | None:
    """Return those arguments of a call that are written so far; None where they cannot be told."""
    for closed in (f'{text}"}}', f"{text}}}", f"{text.rpartition(',')[0]}}}"):
        with suppress(orjson.JSONDecodeError):
            begun: dict[str, Any] = orjson.loads(closed)  # what a brace ends, can be nothing else
            return begun
    return None


def _values_alike(value: Any, other: Any, depth: int = 0) -> float:
    """Return how far two values agree. A text without a space is a name, an id or a path, and the same or not."""
    if isinstance(value, str) and isinstance(other, str):
        if not (_NAME.fullmatch(value) and _NAME.fullmatch(other)):
            return similarity(value, other)
        plain = [normalize("NFC", name).casefold().removeprefix("./").rstrip("/") for name in (value, other)]
        value, other = sorted(plain, key=len)
        return float(value == other or other.endswith(f"/{value}"))  # a path may be given from the root
    if value == other or depth > _DEEPEST:
        return float(value == other)
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict) and isinstance(other, dict):
        pairs = [(value.get(key), other.get(key)) for key in value.keys() | other.keys()]
    elif isinstance(value, list) and isinstance(other, list):
        pairs = list(zip_longest(value, other))
    return math.fsum(_values_alike(*pair, depth + 1) for pair in pairs) / max(1, len(pairs))


def similarity(text: str, other: str) -> float:
    """Return how far two arguments agree by their words: 1 for the same ones, 0 if they have nothing in common.

    Where either contains a number, half of the weight is on whether the last numbers are equal.
    """
    text, other = text[:_MAX_CHARS], other[:_MAX_CHARS]
    if _same_json(text, other):
        return 1.0
    mine, others = _words(text), _words(other)
    if not mine or not others:
        # At least one answer has no words, only punctuation.
        return float(text.split() == other.split())
    overlap = 2 * (Counter(mine) & Counter(others)).total() / (len(mine) + len(others))
    my_last, other_last = _last_number(text), _last_number(other)
    if my_last is None and other_last is None:
        return overlap
    return (overlap + (my_last == other_last)) / 2


def _same_json(answer: str, other: str) -> bool:
    if not answer.lstrip().startswith(("{", "[")):
        return False
    try:
        mine, theirs = (orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS) for text in (answer, other))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # not JSON, or too deep to be written back
        return False
    return mine == theirs


def _words(text: str) -> list[str]:
    words = _WORD.findall(normalize("NFKC", text).casefold())
    return [word for word in words if word not in _ARTICLES] or words  # "A" may be the answer to a multiple choice


def _last_number(text: str) -> float | None:
    numbers = _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None
