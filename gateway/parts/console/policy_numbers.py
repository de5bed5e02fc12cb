"""Find the numbers of a policy's text by which recorded requests would be decided otherwise, and write others there.

These are the numbers of start rules, the thresholds of escalation, how long answers are kept and how alike questions
must be, and the limits by which goodput counts. Left out are those that are not written, and those that a replay says
nothing about, such as `hold_tokens`, `hedge` or `holdout`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import yaml

from gateway.parts.lint.edit import node_at, source_of, with_value
from gateway.parts.lint.rule_values import ROUTE_VALUES, Range
from policies.errors import KeyPath, dotted
from policies.quantities import DURATION

Group = Literal["route", "escalate", "cache", "slo"]

_NUMBER: Final = r"(?:\d+(?:\.\d*)?|\.\d+)"
_IN_RULE: Final = re.compile(
    rf"easiest\s+(?P<easiest>{_NUMBER})\s*%"
    rf"|(?P<name>[a-z_]+)\s*(?:<=|>=|==|!=|<|>)\s*(?P<right>{_NUMBER})(?![\w.%])"
    rf"|(?<![\w.])(?P<left>{_NUMBER})\s*(?:<=|>=|==|!=|<|>)\s*(?P<other>[a-z_]+)"
)
_SHARE: Final = re.compile(rf"({_NUMBER})\s*(%?)")
_ALONE: Final[Mapping[KeyPath, tuple[Group, str, float]]] = {
    ("escalate", "when", "confidence_below"): ("escalate", "confidence below", 0.0),
    ("escalate", "when", "uncalibrated_below"): ("escalate", "uncalibrated score below", 0.0),
    ("escalate", "max_attempts"): ("escalate", "attempts at most", 1.0),
    ("cache", "exact", "ttl"): ("cache", "exact answers kept for", 0.0),
    ("cache", "semantic", "ttl"): ("cache", "semantic answers kept for", 0.0),
    ("cache", "semantic", "min_similarity"): ("cache", "similarity at least", 0.3),
    ("slo", "ttft", "p99"): ("slo", "first token within", 0.0),
    ("slo", "tpot", "p99"): ("slo", "each further token within", 0.0),
    ("slo", "gap", "p99"): ("slo", "longest gap within", 0.0),
    ("slo", "total", "p99"): ("slo", "whole answer within", 0.0),
}
"""Keys with one number: what they belong to, their names in words, and the least that may be written."""
_MOST_ATTEMPTS: Final = 3
_STEPS: Final = 100
_UNWRITTEN: Final[Mapping[KeyPath, float]] = {("cache", "semantic", "min_similarity"): 0.4}
"""Numbers that hold where their section does not write them: one that is changed becomes the section's first key."""


@dataclass(frozen=True, slots=True)
class PolicyNumber:
    """One number of a policy's text, in the unit in which it is written there: `%`, `ms`, `h`, or '' for none.

    `name` is unique in the text. `low` to `high` are values worth trying, `step` apart.
    """

    name: str
    path: KeyPath
    group: Group
    label: str
    value: float
    unit: str
    low: float
    high: float
    step: float
    begin: int = 0
    """Where it begins within the value at its path, and where it ends."""
    end: int = 0


class NotANumber(ValueError):
    """A number cannot be changed so; the message says which and why."""


def numbers_of(text: str) -> list[PolicyNumber]:
    """Return the numbers of a valid policy's text, in a fixed order."""
    numbers = [number for path in _rules(text) for number in _of_rule(text, path)]
    for path, (group, label, least) in _ALONE.items():
        node = node_at(text, path)
        if isinstance(node, yaml.ScalarNode):
            number = _alone(text[node.start_mark.index : node.end_mark.index], path, group, label, least)
            numbers += [] if number is None else [number]
        elif path in _UNWRITTEN and isinstance(node_at(text, path[:-1]), yaml.MappingNode):
            value = _UNWRITTEN[path]
            numbers.append(PolicyNumber(dotted(path), path, group, label, value, "", least, 1.0, 0.01))
    return numbers


def with_numbers(text: str, values: Mapping[str, float]) -> str:
    """Return the text with other values of numbers, by their names. Raises NotANumber for a name that it lacks."""
    numbers = {number.name: number for number in numbers_of(text)}
    if missing := sorted(values.keys() - numbers.keys()):
        raise NotANumber(f"the policy has no number {missing[0]!r} any more; its numbers are {', '.join(numbers)}")
    # Of one rule the last number comes first, so that the places of those before it stay right.
    for number in sorted((numbers[name] for name in values), key=lambda number: -number.begin):
        if values[number.name] != number.value:
            whole = source_of(text, number.path) or ""
            changed = whole[: number.begin] + f"{values[number.name]:.10g}" + whole[number.end :]
            text = with_value(text, number.path, changed)
    return text


def _rules(text: str) -> Iterator[KeyPath]:
    start = node_at(text, ("route", "start"))
    if isinstance(start, yaml.MappingNode):
        yield from (("route", "start", key.value) for key, value in start.value if isinstance(value, yaml.ScalarNode))


def _of_rule(text: str, path: KeyPath) -> Iterator[PolicyNumber]:
    """Yield each number of a start rule; `whole` is the rule as it is written, with quotes if it has some."""
    node = node_at(text, path)
    if not isinstance(node, yaml.ScalarNode):
        return
    whole = text[node.start_mark.index : node.end_mark.index]
    for place, match in enumerate(_IN_RULE.finditer(whole)):
        which = next(name for name in ("easiest", "right", "left") if match[name] is not None)
        value = float(match[which])
        name = match["name"] or match["other"] or ""
        label = f"{path[-1]}: {' '.join(match[0].replace(match[which], '…').split())}"
        if which == "easiest":
            label += " of its kind"
            low, high, step, unit = 1.0, 100.0, 1.0, "%"
        elif name in ROUTE_VALUES:
            low, high, step, unit = *_span(ROUTE_VALUES[name], value), "ms" if name == "budget_ms" else ""
        else:
            continue
        yield PolicyNumber(
            f"{dotted(path)}.{place}", path, "route", label, value, unit, low, high, step, *match.span(which)
        )


def _span(allowed: Range, value: float) -> tuple[float, float, float]:
    """Return the least and the greatest value worth trying, and the step: up to four times that which is written."""
    if allowed.high <= 1:
        return 0.0, 1.0, 0.01
    high = max(value * 4, 10.0 if allowed.whole else 1.0)
    step = _round(high / _STEPS)
    return 0.0, high, max(step, 1.0) if allowed.whole else step


def _alone(whole: str, path: KeyPath, group: Group, label: str, least: float) -> PolicyNumber | None:
    begin = 1 if whole[:1] in ("'", '"') else 0
    bare = whole.strip("'\"")
    base = PolicyNumber(dotted(path), path, group, label, 0.0, "", 0.0, 0.0, 0.0)
    if path[-1] == "max_attempts":
        return replace(base, value=float(bare), low=least, high=_MOST_ATTEMPTS, step=1.0, begin=begin, end=len(bare))
    if (match := DURATION.match(bare)) is not None:
        value = float(match[1])
        # A longer life than the recorded one would give hits of which no record says which.
        high = value if group == "cache" else value * 3
        step = _round(high / _STEPS)
        low, end = min(step, value), begin + len(match[1])
        return replace(base, value=value, unit=match[2], low=low, high=high, step=step, begin=begin, end=end)
    if (match := _SHARE.fullmatch(bare)) is not None:
        scale, value = (100.0 if match[2] else 1.0), float(match[1])
        low, step, end = least * scale, 0.01 * scale, begin + len(match[1])
        return replace(base, value=value, unit=match[2], low=low, high=scale, step=step, begin=begin, end=end)
    return None


def _round(value: float) -> float:
    """Return the nearest of 1, 2 and 5 times a power of ten that is not greater."""
    digit, power = f"{value:.0e}".split("e")
    return float(f"{max(step for step in (1, 2, 5) if step <= int(digit))}e{power}")
