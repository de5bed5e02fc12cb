"""What each measurement asks of a subject first: whether it goes the way that it stands for."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from tests.bench.load import NotAsMeant, Subject, fresh_prompt
from tests.support.wait import until

Figures = dict[str, float]
"""Name of a figure to its value; `_ms` and `_us` names carry their unit."""

Say = Callable[[str], None]

_PROBES = 40
_SETTLE_S = 5.0
"""A cache is written after the reply is sent."""


def check(subjects: Sequence[Subject], folder: Path, turn: int) -> None:
    """Raises NotAsMeant unless each subject goes the path it stands for; no two `turn`s ask the same new prompts."""
    for subject in subjects:
        if subject.reworded:
            ask(subject)  # what the others mean
            others = (fresh_prompt(subject, folder, number) for number in count((turn + 1) * 1_000_000))
            until(partial(_next_goes_its_way, subject, others), _SETTLE_S, f"{subject.name} to go {subject.path}")
        if subject.unique or subject.reworded or subject.texts is not None:
            paths = {ask(subject, fresh_prompt(subject, folder, turn * _PROBES + n)) for n in range(_PROBES)}
        else:
            until(partial(_goes_its_way, subject), _SETTLE_S, f"{subject.name} to go {subject.path}")
            paths = {ask(subject) for _ in range(_PROBES)}
        if paths != {subject.path}:
            raise NotAsMeant(f"{subject.name} went {sorted(paths)}, not {subject.path}")


def _goes_its_way(subject: Subject) -> bool:
    return ask(subject) == subject.path


def _next_goes_its_way(subject: Subject, prompts: Iterator[str]) -> bool:
    """What missed is stored, and an exact hit from then on; so each turn asks another prompt."""
    return ask(subject, next(prompts)) == subject.path


def ask(subject: Subject, prompt: str | None = None) -> str:
    """The x-tierline-path of one request."""
    return reply_to(subject, prompt)[0]


def reply_to(subject: Subject, prompt: str | None = None) -> tuple[str, bytes]:
    """The x-tierline-path and the body of one reply."""
    body = subject.body(prompt) if prompt is not None else subject.body()
    connection = http.client.HTTPConnection("127.0.0.1", subject.service.port, timeout=10)
    try:
        connection.request("POST", subject.target, body, {"content-type": "application/json", **subject.headers})
        reply = connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise NotAsMeant(f"{subject.name}: {reply.status} {text[:500].decode(errors='replace')}")
        return reply.headers.get("x-tierline-path", ""), text
    finally:
        connection.close()
