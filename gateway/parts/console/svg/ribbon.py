"""Draw the judged beginning of an answer as a ribbon: a cell per token, coloured by its probability."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from gateway.parts.console.svg import joined, tag
from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names

_CELL: Final = 14
_HEIGHT: Final = 26
_STEPS: Final = (0.2, 0.5, 0.8, 0.95)
"""Probabilities at which the colour changes."""


def ribbon(attributes: Mapping[str, Any]) -> Markup | None:
    """Draw the ribbon of an attempt's attributes; None if it was not judged by its tokens."""
    logprobs: Sequence[float] | None = attributes.get(detail.PREFIX)
    if not logprobs:
        return None
    tokens: Sequence[str] = attributes.get(names.PREFIX_TOKENS) or ()
    doubtful: Collection[int] = attributes.get(detail.LOWEST) or ()
    shapes = []
    for place, logprob in enumerate(logprobs):
        probability = math.exp(min(logprob, 0.0))
        token = f"{tokens[place]!r}, " if place < len(tokens) else ""
        title = tag("title", f"token {place + 1}: {token}probability {probability:.3f}")
        x, kind = place * _CELL, f"p{_step(probability)}"
        shapes.append(tag("rect", title, x=x, y=3, width=_CELL - 1, height=16, rx=2, class_=kind))
        if place in doubtful:
            middle = place * _CELL + (_CELL - 1) / 2
            shapes.append(tag("circle", cx=middle, cy=23, r=2, class_="doubt"))
    end = len(logprobs) * _CELL + 2
    shapes.append(tag("line", tag("title", "the verdict"), x1=end, x2=end, y1=0, y2=_HEIGHT, class_="verdict"))
    text = f"{len(logprobs)} judged tokens by probability, the least probable ones marked"
    return tag("svg", joined(shapes), class_="ribbon", width=end + 4, height=_HEIGHT, role="img", aria_label=text)


def doubts(attributes: Mapping[str, Any]) -> list[str]:
    """Return the least probable tokens in words, the least probable first."""
    places = attributes.get(detail.LOWEST) or ()
    logprobs = attributes.get(detail.LOWEST_LOGPROBS) or ()
    tokens = attributes.get(names.LOWEST_TOKENS) or ()
    return [
        f"token {place + 1}{f' {tokens[n]!r}' if n < len(tokens) else ''} at {math.exp(min(logprob, 0.0)):.2f}"
        for n, (place, logprob) in enumerate(zip(places, logprobs, strict=False))
    ]


def _step(probability: float) -> int:
    return sum(probability >= step for step in _STEPS)
