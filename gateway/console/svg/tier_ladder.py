"""Draw the turns of a conversation as steps on the ladder of tiers, and below what each of them read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from gateway.console.flips import ConversationTurn
from gateway.console.svg import joined, tag
from policies.quantities import dollars

_LEFT: Final = 96
_WIDTH: Final = 1060
"""Width that few turns share; many take more, and the drawing is scrolled."""
_PITCHES: Final = (36, 84)
"""Least and greatest distance between turns."""
_RUNG: Final = 34
_TOP: Final = 14
_PROMPT: Final = 64
"""Height of the bars of prompts."""
_BAR: Final = 18
_RADIUS: Final = 5.5
CACHE: Final = "answer cache"
"""The lowest rung: turns that no model was called for."""


def rungs(turns: Sequence[ConversationTurn], ladder: Sequence[str]) -> list[str]:
    """Return the rungs of a drawing, the strongest tier first; of `ladder`, the weakest first, those that answered."""
    used = {turn.tier for turn in turns if turn.backend}
    known = [tier for tier in reversed(ladder) if tier in used]
    return [*known, *sorted(used - set(known)), *([CACHE] if any(not turn.backend for turn in turns) else [])]


def tier_ladder(turns: Sequence[ConversationTurn], ladder: Sequence[str], text: str) -> Markup:
    """Draw the ladder; each turn leads to its row on the page."""
    rung_of = {tier: place for place, tier in enumerate(rungs(turns, ladder))}
    pitch = min(max((_WIDTH - _LEFT) / max(len(turns), 1), _PITCHES[0]), _PITCHES[1])
    width = round(_LEFT + pitch * max(len(turns), 1) + 8)
    floor = _TOP + _RUNG * len(rung_of) + 6
    height = floor + _PROMPT + 22
    shapes = [tag("title", text)]
    for tier, place in rung_of.items():
        y = _TOP + _RUNG * place + _RUNG / 2
        shapes.append(tag("line", x1=_LEFT, x2=width, y1=y, y2=y, class_="rung"))
        shapes.append(tag("text", tier, x=0, y=y + 4, class_="rung-name"))
    shapes.append(tag("text", "prompt", x=0, y=floor + _PROMPT - 2, class_="rung-name"))
    most = max([turn.tokens_in or 0 for turn in turns], default=0) or 1
    last: tuple[float, float] | None = None
    dots: list[Markup] = []
    for turn in turns:
        x = round(_LEFT + pitch * (turn.number - 0.5), 1)
        y = _TOP + _RUNG * rung_of[turn.tier if turn.backend else CACHE] + _RUNG / 2
        if turn.backend:
            if last is not None:
                shapes += _step(last, (x, y), x - pitch / 2, turn)
            last = x, y
        dots.append(_turn(turn, x, y))
        shapes += _prompt(turn, x, floor, most)
        shapes.append(tag("text", str(turn.number), x=x, y=height - 4, class_="tick"))
    return tag(
        "svg", joined([*shapes, *dots]), class_="tier-ladder", width=width, height=height,
        viewBox=f"0 0 {width} {height}", role="group", aria_label=text,
    )  # fmt: skip


def _step(start: tuple[float, float], end: tuple[float, float], middle: float, turn: ConversationTurn) -> list[Markup]:
    """Return the way from one turn to the next; the colour of a flip begins where it leaves the rung."""
    (x1, y1), (x2, y2) = start, end
    flip = turn.flip
    if flip is None or flip.within_tier:
        return [tag("polyline", points=f"{x1},{y1} {x2},{y2}", class_="step stay")]
    points = f"{middle:.1f},{y1} {middle:.1f},{y2} {x2},{y2}"
    return [
        tag("polyline", points=f"{x1},{y1} {middle:.1f},{y1}", class_="step stay"),
        tag("polyline", tag("title", flip.why), points=points, class_=f"step {'forced' if flip.forced else 'chosen'}"),
    ]


def _turn(turn: ConversationTurn, x: float, y: float) -> Markup:
    how = f"failed with {turn.status}" if turn.failed else turn.path or "no answer"
    told = f"turn {turn.number}: {turn.tier or 'no tier'}, {how}, {dollars(turn.cost_usd)}"
    if turn.flip is not None:
        told += f"; {turn.flip.why}"
    kind = "failed" if turn.failed else "hit" if not turn.backend else "moved" if turn.flip is not None else "stayed"
    shapes = [tag("title", told), tag("circle", cx=x, cy=y, r=_RADIUS, class_=f"turn {kind}")]
    if turn.lost_reasoning:
        shapes.append(tag("circle", cx=x, cy=y, r=_RADIUS + 3.5, class_="lost"))
    return tag("a", joined(shapes), href=f"#turn-{turn.number}", aria_label=told)


def _prompt(turn: ConversationTurn, x: float, floor: float, most: int) -> list[Markup]:
    """Return the bar of a turn's prompt: below what was cached, above what was read."""
    if not turn.tokens_in:
        return []
    whole = turn.tokens_in / most * (_PROMPT - 4)
    cached = (turn.tokens_cached or 0) / most * (_PROMPT - 4)
    foot, left = floor + _PROMPT, x - _BAR / 2
    kind = "unknown" if turn.tokens_cached is None else "again" if turn.flip is not None else "read"
    told = f"{turn.tokens_in:,} tokens" + ("" if turn.tokens_cached is None else f", {turn.tokens_cached:,} cached")
    read = tag(
        "rect", tag("title", told), x=left, width=_BAR, y=f"{foot - whole:.1f}",
        height=f"{max(whole - cached, 0.5):.1f}", class_=f"prompt {kind}",
    )  # fmt: skip
    if not cached:
        return [read]
    part = tag("rect", tag("title", told), x=left, width=_BAR, y=f"{foot - cached:.1f}", height=f"{cached:.1f}",
               class_="prompt cached")  # fmt: skip
    return [read, part]
