"""Check the differences that a replay found against limits, such as `goodput < -1%`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.parts.lab.replay.figures import FIGURES

if TYPE_CHECKING:
    from gateway.parts.lab.replay.run import Replayed

_GATE: Final = re.compile(r"\s*([a-z_0-9]+)\s*(<|>)\s*([+-]?)(\d+(?:\.\d+)?)(?:\s*(%|ms|s))?\s*")
_UNITS: Final[Mapping[str, float]] = {"%": 0.01, "ms": 1.0, "s": 1000.0, "": 1.0}
_NAMES: Final = (*FIGURES, "quality")


class GateError(ValueError):
    """A gate cannot be read; the message says what may be written."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A limit of a figure's difference; it fails where the difference is beyond `limit`.

    `limit` is a share, milliseconds, or for costs a share of the cost before.
    """

    source: str
    name: str
    below: bool
    limit: float

    @classmethod
    def parse(cls, source: str) -> Gate:
        """Parse a gate such as `goodput < -1%`, `ttft_p95 > +50ms` or `cost > +10%`. Raises GateError."""
        match = _GATE.fullmatch(source)
        if match is None or match[1] not in _NAMES:
            raise GateError(
                f"{source!r} is not a gate; write a figure ({', '.join(_NAMES)}), < or >, and a difference, such as "
                "'goodput < -1%', 'ttft_p95 > +50ms' or 'cost > +10%'"
            )
        name, compare, sign, number, unit = match.groups(default="")
        kind = FIGURES.get(name, "share")
        if (kind == "ms") != (unit in ("ms", "s")) or (kind != "ms" and unit != "%"):
            wanted = "a time such as +50ms" if kind == "ms" else "a share such as -1%"
            raise GateError(f"{source!r}: a difference of {name} is {wanted}")
        limit = float(number) * _UNITS[unit] * (-1 if sign == "-" else 1)
        return cls(source.strip(), name, compare == "<", limit)

    def value(self, replayed: Replayed) -> float | None:
        """Return the difference that is compared; None if it is not known."""
        if self.name == "quality":
            value = replayed.quality["difference"]
            return None if value is None else float(value)
        change = replayed.figures[self.name]
        if change.difference != change.difference:
            return None
        if FIGURES[self.name] != "usd":
            return change.difference
        return change.difference / change.before if change.before else (0.0 if not change.difference else None)

    def fails(self, replayed: Replayed) -> bool:
        """Return whether the difference is beyond the limit, or not known."""
        value = self.value(replayed)
        if value is None:
            return True
        return value < self.limit if self.below else value > self.limit


def failed_gates(gates: Sequence[Gate], replayed: Replayed) -> list[Gate]:
    """Return the gates that fail."""
    return [gate for gate in gates if gate.fails(replayed)]
