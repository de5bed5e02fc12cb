"""Track an endpoint's rate limits from its reply headers, to avoid calls that it would refuse.

    OpenAI, Groq, vLLM proxies      x-ratelimit-{limit,remaining,reset}-{requests,tokens}, resets as 6m0s or 20ms
    Anthropic                       anthropic-ratelimit-{requests,input-tokens,output-tokens}-{limit,remaining,reset},
                                    resets as RFC 3339 dates
    draft-ietf-httpapi-ratelimit-headers    RateLimit: "name";r=0;t=30, with the units in RateLimit-Policy; and the
                                    earlier RateLimit-Remaining and RateLimit-Reset

Where a limit is given too, it is a bucket that fills steadily and whose reset is when it will be full (OpenAI's and
Anthropic's are documented so): with 60 requests a minute and none left, the next is due in a second, not a minute.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gateway.backends.http_backend import number_in
from gateway.backends.server_forms import Header, Quota, Unit

_LONGEST_WAIT_S = 60.0
"""Longest wait in seconds; after it the endpoint is called again whatever the headers said."""
_LONGEST_VALUE = 256
_LONG_PROMPT = 32_768
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?", re.ASCII)
_DURATION_UNITS_S = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_ITEM = re.compile(r'(?<![^";,=])"?([^";,=]*+)"?((?:\s*+;\s*+[a-z]++=[^;,]++)++)')
_PARAMETER = re.compile(r"(?<![a-z])([a-z]++)=\"?([^;,\"]++)")


@dataclass(frozen=True, slots=True)
class _Allowance:
    """The header names of one rate limit."""

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
    """Hold the remaining amount of one limit at one moment, and when it resets. Parsed only when needed."""

    unit: Unit
    remaining: float
    heard_at: float
    heard_at_wall: float
    full_in: str | None
    limit: str | None
    spent: float = 0.0
    """Amount used by calls made since then."""

    def wait_s(self, need: float, now: float) -> float:
        """Return the seconds until this amount is available again; 0 if it is now."""
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

    def left(self, now: float) -> tuple[float, float | None] | None:
        """Return what should be left by now, and the limit if it is known; None once too much time has passed."""
        left, of, comes_in_s = (
            self.remaining - self.spent,
            number_in(self.limit),
            _seconds(self.full_in, self.heard_at_wall),
        )
        passed_s = now - self.heard_at
        if of is not None and comes_in_s:
            left += (of - self.remaining) * min(1.0, passed_s / comes_in_s)
        elif passed_s > (comes_in_s or _LONGEST_WAIT_S):
            return None
        return max(0.0, left if of is None else min(left, of)), of


class HeaderQuota(Quota):
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
        """Whether so little is left that `wait_s` must be checked before a call."""

    def heard(self, header: Header, now: float) -> None:
        """Record the limits in a reply's headers; `header` returns a header by its name.

        For an endpoint without such headers this costs one look-up (0.3 us): each reply is checked for a different
        header.
        """
        if self._others:
            self._next = (self._next + 1) % len(self._others)
            if header(self._others[self._next].remaining) is not None:
                self._known.append(self._others.pop(self._next))
        if self._known:
            self._hear_all(header, now)

    def refused(self, header: Header, now: float) -> None:
        """Record the limits in an error reply, reading all headers, because one of them may give the reason."""
        allowances = [allowance for allowance in self._others if header(allowance.remaining) is not None]
        self._known += allowances
        self._others = [allowance for allowance in self._others if allowance not in allowances]
        if self._known:
            self._hear_all(header, now)

    def spent(self, tokens_in: int) -> None:
        """Subtract a call being made, until a reply reports the new remainder."""
        if not self._left:
            return
        for left in self._left.values():
            if left.unit != "tokens_out":
                left.spent += tokens_in if left.unit == "tokens_in" else 1
        self._weigh()

    def pause(self, seconds: float, now: float) -> None:
        """Record that nothing is left for this many seconds, as a sibling worker reports."""
        self._paused_until = now + min(seconds, _LONGEST_WAIT_S)
        self.tight = True

    def wait_s(self, now: float, tokens_in: int = 0) -> float:
        """Return the seconds until a call with a prompt of this many tokens may be made: 0 if now, at most 60."""
        return max(self.own_wait_s(now, tokens_in), self._paused_until - now)

    def own_wait_s(self, now: float, tokens_in: int = 0) -> float:
        """Return the same wait from this worker's own replies alone, to report to sibling workers."""
        longest = 0.0
        for left in self._left.values():
            need = max(1, tokens_in) if left.unit == "tokens_in" else 1
            if left.remaining - left.spent < need:
                longest = max(longest, left.wait_s(need, now))
        return longest

    def headroom(self, now: float) -> dict[Unit, tuple[float, float | None]]:
        """Return what is left of each rate limit, and of how much if that is known; empty where the backend says none.

        Of several limits of one unit, such as Anthropic's and the draft standard's, the one with the least left counts.
        """
        found: dict[Unit, tuple[float, float | None]] = {}
        for limit in self._left.values():
            if (left := limit.left(now)) is not None and (limit.unit not in found or left[0] < found[limit.unit][0]):
                found[limit.unit] = left
        return found

    def _hear_all(self, header: Header, now: float) -> None:
        for allowance in self._known:
            self._hear(allowance, header, now)
        self._paused_until = 0.0  # newer than any sibling's report
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
    """Return the remaining requests and seconds until reset, of the request limit with the least left."""
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
    """Return seconds from `now`, given a number, a duration such as 1m30s or 20ms, or an RFC 3339 date."""
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
