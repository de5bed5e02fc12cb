"""What an endpoint's rate-limit headers say is left, so that no call goes out only to be refused.

    OpenAI, Groq, vLLM proxies      x-ratelimit-{limit,remaining,reset}-{requests,tokens}, resets as 6m0s or 20ms
    Anthropic                       anthropic-ratelimit-{requests,input-tokens,output-tokens}-{limit,remaining,reset},
                                    resets as RFC 3339 dates
    draft-ietf-httpapi-ratelimit-headers    RateLimit: "name";r=0;t=30, with the units in RateLimit-Policy; and the
                                    earlier RateLimit-Remaining and RateLimit-Reset

Where a limit is given too, it is a bucket that fills steadily and whose reset is when it will be full (OpenAI's and
Anthropic's are documented so): with 60 requests a minute and none left, the next may go in a second, not in a minute.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Header = Callable[[str], str | None]
Unit = Literal["requests", "tokens_in", "tokens_out"]

_LONGEST_WAIT_S = 60.0
"""As with every rest: after a minute it is tried again."""
_LONGEST_VALUE = 256
_LONG_PROMPT = 32_768
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?", re.ASCII)
_DURATION_UNITS_S = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_ITEM = re.compile(r'"?([^";,=]*)"?((?:\s*;\s*[a-z]+=[^;,]+)+)')
_PARAMETER = re.compile(r"([a-z]+)=\"?([^;,\"]+)")


@dataclass(frozen=True, slots=True)
class _Allowance:
    """One limit by its headers' names."""

    unit: Unit
    remaining: str
    limit: str
    reset: str


def _openai(what: str, unit: Unit) -> _Allowance:
    return _Allowance(unit, f"x-ratelimit-remaining-{what}", f"x-ratelimit-limit-{what}", f"x-ratelimit-reset-{what}")


def _anthropic(what: str, unit: Unit) -> _Allowance:
    name = f"anthropic-ratelimit-{what}"
    return _Allowance(unit, f"{name}-remaining", f"{name}-limit", f"{name}-reset")


_IETF = _Allowance("requests", "RateLimit", "RateLimit-Policy", "RateLimit")
_ALLOWANCES = (
    _openai("requests", "requests"),
    _openai("tokens", "tokens_in"),
    _anthropic("requests", "requests"),
    _anthropic("input-tokens", "tokens_in"),
    _anthropic("output-tokens", "tokens_out"),
    _IETF,
    _Allowance("requests", "RateLimit-Remaining", "", "RateLimit-Reset"),
)


@dataclass(slots=True)
class _Left:
    """Hold what was left of one limit at a moment, and how it comes back; parsed when needed, which is rare."""

    unit: Unit
    remaining: float
    heard_at: float
    heard_at_wall: float
    full_in: str | None
    limit: str | None
    spent: float = 0.0
    """What calls that went out since have used."""

    def wait_s(self, need: float, now: float) -> float:
        """Return the seconds until there is so much."""
        if self.remaining - self.spent >= need:
            return 0.0
        comes_in_s = _seconds(self.full_in, self.heard_at_wall)
        if comes_in_s is None:
            return 0.0
        limit = number_in(self.limit)
        if limit is not None and limit > self.remaining:
            lacking = min(need + self.spent, limit) - self.remaining
            comes_in_s *= max(0.0, lacking) / (limit - self.remaining)
        return max(0.0, self.heard_at + min(comes_in_s, _LONGEST_WAIT_S) - now)


class Quota:
    """Track what is left of an endpoint's rate limits, from the headers of its replies; read before each call."""

    __slots__ = ("_known", "_left", "_next", "_others", "_paused_until", "_wall", "tight")

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._known: list[_Allowance] = []
        self._others = list(_ALLOWANCES)
        self._next = 0
        self._left: dict[str, _Left] = {}
        self._paused_until = 0.0
        self.tight = False
        """Whether so little is left, as far as was heard, that `wait_s` must be asked."""

    def heard(self, header: Header, now: float) -> None:
        """Note the limits in a reply; `header` looks up one of its headers by name.

        Of an endpoint that sends none this costs one look-up (0.3 us): a different header is tried each time.
        """
        if self._others:
            self._next = (self._next + 1) % len(self._others)
            if header(self._others[self._next].remaining) is not None:
                self._known.append(self._others.pop(self._next))
        self._hear_all(header, now)

    def refused(self, header: Header, now: float) -> None:
        """Note the limits in an error reply: all headers are read, as one of them may give the reason."""
        found = [allowance for allowance in self._others if header(allowance.remaining) is not None]
        self._known += found
        self._others = [allowance for allowance in self._others if allowance not in found]
        self._hear_all(header, now)

    def spent(self, tokens_in: int) -> None:
        """Subtract a call that goes out, until a reply reports what is left."""
        if not self._left:
            return
        for left in self._left.values():
            if left.unit != "tokens_out":
                left.spent += tokens_in if left.unit == "tokens_in" else 1
        self._weigh()

    def pause(self, seconds: float, now: float) -> None:
        """Note that nothing is left for so long, as a sibling worker reports."""
        self._paused_until = now + min(seconds, _LONGEST_WAIT_S)
        self.tight = True

    def wait_s(self, now: float, tokens_in: int = 0) -> float:
        """Return the seconds until a call with a prompt of so many tokens may go out, 0 if it may now; at most 60."""
        return max(self.own_wait_s(now, tokens_in), self._paused_until - now)

    def own_wait_s(self, now: float, tokens_in: int = 0) -> float:
        """Return the same from this worker's own replies alone, for its siblings."""
        longest = 0.0
        for left in self._left.values():
            need = max(1, tokens_in) if left.unit == "tokens_in" else 1
            if left.remaining - left.spent < need:
                longest = max(longest, left.wait_s(need, now))
        return longest

    def _hear_all(self, header: Header, now: float) -> None:
        if self._known:
            for allowance in self._known:
                self._hear(allowance, header, now)
            self._paused_until = 0.0  # newer than what any sibling has heard
            self._weigh()

    def _weigh(self) -> None:
        self.tight = self._paused_until > 0 or any(
            left.remaining - left.spent < (_LONG_PROMPT if left.unit == "tokens_in" else 1)
            for left in self._left.values()
        )

    def _hear(self, allowance: _Allowance, header: Header, now: float) -> None:
        value = header(allowance.remaining)
        if value is None or len(value) > _LONGEST_VALUE:
            return
        if allowance is _IETF:
            remaining, full_in = _read_ietf(value, header(allowance.limit) or "")
            limit = None
        else:
            remaining, full_in = number_in(value), header(allowance.reset)
            limit = header(allowance.limit) if allowance.limit else None
        if remaining is None:
            self._left.pop(allowance.remaining, None)
        else:
            self._left[allowance.remaining] = _Left(allowance.unit, remaining, now, self._wall(), full_in, limit)


def _read_ietf(value: str, policy: str) -> tuple[float | None, str | None]:
    """Return what remains and the seconds until it is reset, of the tightest of the items that count requests."""
    not_requests = {name for name, rest in _items(policy[:_LONGEST_VALUE]) if rest.get("qu", "requests") != "requests"}
    items = [
        (remaining, -reset, item["t"])
        for name, item in _items(value)
        if name not in not_requests
        and (remaining := number_in(item.get("r"))) is not None
        and (reset := number_in(item.get("t"))) is not None
    ]
    if not items:
        return None, None
    remaining, _, full_in = min(items)
    return remaining, full_in


def _items(text: str) -> list[tuple[str, dict[str, str]]]:
    return [(name.strip(), dict(_PARAMETER.findall(rest))) for name, rest in _ITEM.findall(text)]


def _seconds(text: str | None, wall: float) -> float | None:
    """Return the seconds from a moment on: of a number, a duration such as 1m30s or 20ms, or an RFC 3339 date."""
    if not text or len(text) > _LONGEST_VALUE:
        return None
    number = number_in(text)
    if number is not None:
        return number
    duration = _DURATION.fullmatch(text.strip())
    if duration is not None and any(duration.groups()):
        return sum(float(n) * unit for n, unit in zip(duration.groups(), _DURATION_UNITS_S, strict=True) if n)
    try:
        return max(0.0, datetime.fromisoformat(text.strip()).timestamp() - wall)
    except (ValueError, OverflowError):
        return None


def number_in(text: str | None) -> float | None:
    """Return the number in a header; None for anything else, and for less than 0."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
