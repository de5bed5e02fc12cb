"""Generate the exam's support desk streams, and run them through the cache with its controller and its own audit.

A request is an intent, with values of its slots, in one of its wordings, often with a greeting or thanks around it. Few
intents make most requests: the one of rank r is drawn with a weight of 1 / r. The model's answer is one of the
intent's two answer texts, and the audit compares such texts.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rich.table import Table

from gateway.parts.fit.embedding import Remembered
from gateway.parts.hit_audits.comparison import AnswerComparer
from gateway.parts.hit_audits.control import RiskControl
from gateway.report import OnProgress, table
from tests.bench.cache_stream import Stream, StreamGate, Truth, near_neighbours, rates
from tests.bench.exam.questions import FOLDER, read_data
from tests.bench.measure_cache import CacheUnderTest, PlannedRequests

REQUESTS: Final = 5_000
MAX_ERROR: Final = 0.01
_WRAPPED: Final = 0.4
"""Share of the requests with a greeting, and of those with thanks."""
_SLOT: Final = re.compile(r"\{(\w+)\}")


Labels: TypeAlias = Counter[tuple[bool, str]]
"""Counts what the audit said: whether both requests want the same, and its verdict."""


@dataclass(frozen=True, slots=True)
class DeskRequest:
    """A request: what is asked in which words, the number of what it wants, and what a model answers."""

    text: str
    wants: int
    answer: str


def desk_requests(language: str, count: int, seed: int) -> list[DeskRequest]:
    """Return the requests of a desk in order of arrival."""
    data, rng = read_data(FOLDER / "desk" / f"{language}.toml"), random.Random(seed)
    intents = list(data["intents"])
    rng.shuffle(intents)
    weights = [1 / rank for rank in range(1, len(intents) + 1)]
    numbers: dict[tuple[int, ...], int] = {}
    requests = []
    for place in rng.choices(range(len(intents)), weights, k=count):
        asks, answers = intents[place]
        ask, answer = rng.choice(asks), rng.choice(answers)
        chosen = []
        for slot in sorted({*_SLOT.findall(ask)}):
            values = data["slots"][slot]
            chosen.append(rng.choices(range(len(values)), [1 / rank for rank in range(1, len(values) + 1)])[0])
            ask, answer = (text.replace(f"{{{slot}}}", values[chosen[-1]]) for text in (ask, answer))
        before, after = (rng.choice(data[part]) if rng.random() < _WRAPPED else "" for part in ("before", "after"))
        wants = numbers.setdefault((place, *chosen), len(numbers))
        requests.append(DeskRequest(before + ask + after, wants, answer))
    return requests


def desk_languages() -> list[str]:
    """Return the codes of the languages that have a desk."""
    return sorted(file.stem for file in (FOLDER / "desk").glob("*.toml"))


def run_desks(
    languages: Sequence[str],
    count: int,
    seed: int,
    cache: CacheUnderTest,
    planned: PlannedRequests,
    embedder: Remembered,
    comparer: AnswerComparer,
    on_progress: OnProgress,
) -> tuple[dict[str, Any], list[str | Table]]:
    """Run the desk of each language by itself; return the figures as JSON values and as a table.

    `fixed` is the same stream at the threshold that holds at first, without a controller.
    """
    values: dict[str, Any] = {}
    shown = table(
        f"desk of {count:,}", "error", "by meaning", "exact hits", "threshold", "same (wrongly)", "other (wrongly)",
        "breach",
    )  # fmt: skip
    for language in languages:
        requests = desk_requests(language, count, seed)
        control = RiskControl(MAX_ERROR, cache.threshold, cache.semantic.audit, comparer.errors)
        gate = StreamGate(cache.threshold, control, seed, judged=False)
        labels: Labels = Counter()
        stream = _stream(requests, cache, planned, embedder, _audit(requests, comparer, labels), on_progress)
        outcome = stream.served_by(cache.stages, gate, on_progress)
        found, fixed = rates(outcome), rates(stream.served_by(cache.stages, StreamGate(cache.threshold), on_progress))
        shown.add_row(
            language, str(found.error), str(found.by_meaning), str(found.repeats),
            f"{cache.threshold:.2f}, {control.threshold:.2f}",
            f"{labels[True, 'same']:,} ({labels[False, 'same']:,})",
            f"{labels[False, 'different']:,} ({labels[True, 'different']:,})",
            "yes" if gate.breached else "no",
        )  # fmt: skip
        shown.add_row(f"{language}, fixed", str(fixed.error), str(fixed.by_meaning), str(fixed.repeats))
        values[language] = {
            "error": found.error.as_json(),
            "by_meaning": found.by_meaning.as_json(),
            "exact": found.repeats.as_json(),
            "wrong_hits": int(outcome.wrong.sum()),
            "threshold": control.threshold,
            "labels": {
                f"{'same' if same else 'other'}_called_{verdict}": count for (same, verdict), count in labels.items()
            },
            "breach_shown": gate.breached,
            "fixed": {"error": fixed.error.as_json(), "by_meaning": fixed.by_meaning.as_json()},
        }
    return values, [shown, ""]


def _stream(
    requests: Sequence[DeskRequest],
    cache: CacheUnderTest,
    planned: PlannedRequests,
    embedder: Remembered,
    audit: Callable[[int, int], bool | None],
    on_progress: OnProgress,
) -> Stream:
    asked = [planned.asked(request.text) for request in requests]
    texts = list(dict.fromkeys(one.text for one in asked))
    places = {text: place for place, text in enumerate(texts)}
    neighbours = near_neighbours(embedder.embed(texts), cache.semantic.min_similarity, on_progress)
    return Stream(
        asked,
        [request.wants for request in requests],
        [places[one.text] for one in asked],
        neighbours,
        Truth(1 + max(request.wants for request in requests), []),
        audit,
    )


def _audit(
    requests: Sequence[DeskRequest], comparer: AnswerComparer, labels: Labels
) -> Callable[[int, int], bool | None]:
    """Return what the audit says of serving one request with the stored answer of another; `labels` counts verdicts."""

    def says_wrong(stored: int, row: int) -> bool | None:
        one, other = requests[stored], requests[row]
        verdict = comparer.compare(one.answer, other.answer, other.text)
        labels[one.wants == other.wants, verdict] += 1
        return None if verdict == "unknown" else verdict == "different"

    return says_wrong
