"""Define differences as they are written in policies, with their sign: `-1%`, `+10%`, `+50ms`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BeforeValidator, Field

from policies.quantities import read_duration, read_share


def _signed(sign: str, what: str, read: Callable[[object], object]) -> Callable[[object], object]:
    """Return a parser of values with a sign in front, `what` in words. It raises ValueError."""

    def parse(value: object) -> object:
        if not isinstance(value, str) or not value.startswith(sign):
            raise ValueError(f"{value!r} is not {what}")
        amount = read(value[1:])
        if not isinstance(amount, int | float) or amount < 0:
            raise ValueError(f"{value!r} is not a share; write -1% or +10%")
        return -float(amount) if sign == "-" else float(amount)

    return parse


_fall = _signed("-", "a fall; write a share with a minus, such as -1%", read_share)
_rise = _signed("+", "a rise; write a share with a plus, such as +10%", read_share)
_delay = _signed("+", "a delay; write a duration with a plus, such as +50ms", read_duration)

Fall = Annotated[float, BeforeValidator(_fall), Field(ge=-1, le=0)]
Rise = Annotated[float, BeforeValidator(_rise), Field(ge=0)]
Delay = Annotated[float, BeforeValidator(_delay), Field(ge=0)]
