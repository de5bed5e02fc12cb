"""Remember what a backend refused in words that no rule knows, and what came of it at the next tier.

Such a 400 or 422 (`unknown` in `gateway.backends.blame`) goes to the next tier once. What that tier says decides whose
fault it was, and is remembered by the shape of the refusal:

    the next tier answered     the backend cannot do it: the next request of this shape goes on, too
    the next tier refused it   the caller's: the next one of this shape gets the refusal at once, for ten minutes

A shape is the tenant, the names of the request's fields, the status, and the words without what they may quote of the
request: texts in quotes, numbers, words that the request has too (but for those that say what is refused), and all
after the first 160 characters. So one tenant's mistakes decide for no other, and the words show nobody's prompt.

A refusal of a request with tools, pictures or a form for its answer that another tier then answered, in whatever words,
is remembered of the tier, too (`RefusedRequests`): for ten minutes it is passed over for such requests.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple

import orjson

from gateway.backends.base import BadStatus
from gateway.backends.server_forms import RefusalVerdict

Shape = tuple[str, frozenset[str], int, str]
RefusedKind = tuple[str, frozenset[str], frozenset[str], bytes]

CALLERS_S: Final = 600.0
"""Seconds for which a refusal that every tier agreed to is taken for the caller's fault."""
KEPT_S: Final = 6 * 3600.0
"""Seconds after its last occurrence until a refusal is forgotten."""
_MOST: Final = 64
_LONGEST: Final = 160
_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`|\{.*|\[.*|\d+", re.DOTALL)
_SPACE: Final = re.compile(r"\s+")
_WORD: Final = re.compile(r"[^\s*.,:;()]+")
_SAYS_WHAT: Final = frozenset(
    """
    a allowed an and any api are argument array as at audio available bad be been body but by can cannot choice
    content context could count disabled do does enabled error exceeded exceeds expected extra failed feature field
    file files for format found from function functions given has have if image images in input inputs into invalid
    is it its json key large length limit long maximum may message messages minimum missing model models more most
    must no none not object of on one only option or output over parameter parameters parse per permitted please
    prompt provided provider reasoning refused remove request requests required response role schema server set
    should so string such support supported supports system text than that the their there these this to token
    tokens too tool tools type unexpected unknown unsupported up url use used using valid value values was when
    where which while will with without you your
    """.split()  # noqa: SIM905 (one word a line would be a page)
)
"""Words that say what is refused, and that are kept although the request may have them too."""


@dataclass(slots=True)
class _RefusalKind:
    """One kind of refusal: how often it came, when last, and what it means."""

    count: int = 0
    last: float = 0.0
    verdict: RefusalVerdict = ""
    decided: float = 0.0


class HeardDoubt(NamedTuple):
    """A refusal in words that no rule knows, so that it is not clear whether request or backend is at fault.

    `callers`: every tier refused such a request lately, so it is taken for the request's fault.
    """

    refusals: HeardRefusals
    shape: Shape
    callers: bool

    def decide(self, verdict: RefusalVerdict) -> None:
        """Store the verdict for further refusals in the same words."""
        self.refusals.decide(self.shape, verdict)


class HeardRefusals:
    """The refusals of one backend that no rule knows. Use it from one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: OrderedDict[Shape, _RefusalKind] = OrderedDict()

    @staticmethod
    def words(error: BadStatus, body: Mapping[str, object]) -> str:
        """Return an error's words without what they may quote of the request."""
        text = str(error.told.get("message") or error.told.get("code") or "")
        text = _SPACE.sub(" ", _QUOTED.sub("*", text[: 4 * _LONGEST]))[:_LONGEST].strip()
        request = orjson.dumps(body, default=str).decode().lower()

        def shown(match: re.Match[str]) -> str:
            word = match[0]
            return word if word in body or word.lower() in _SAYS_WHAT or word.lower() not in request else "*"

        return _WORD.sub(shown, text)

    def heard(self, error: BadStatus, tenant: str, body: Mapping[str, object]) -> HeardDoubt:
        """Count a refusal of a tenant's request, and return it."""
        now = self._clock()
        shape = (tenant, frozenset(body), error.status, self.words(error, body))
        kind = self._kinds.setdefault(shape, _RefusalKind())
        self._kinds.move_to_end(shape)
        if now - kind.last > KEPT_S:
            kind.count, kind.verdict = 0, ""
        kind.count, kind.last = kind.count + 1, now
        if len(self._kinds) > _MOST:
            self._kinds.popitem(last=False)
        return HeardDoubt(self, shape, kind.verdict == "callers" and now - kind.decided < CALLERS_S)

    def decide(self, shape: Shape, verdict: RefusalVerdict) -> None:
        """Remember what a refusal meant. That another tier answered is never undone by a later refusal there."""
        kind = self._kinds.get(shape)
        if kind is not None and kind.verdict != "cannot":
            kind.verdict, kind.decided = verdict, self._clock()

    def shown(self) -> list[dict[str, Any]]:
        """Return what was refused in the last hours, the latest first: status, words, count, and what it meant."""
        now = self._clock()
        joined: dict[tuple[int, str], dict[str, Any]] = {}
        for (_, _, status, words), kind in reversed(self._kinds.items()):
            if now - kind.last > KEPT_S:
                continue
            row = joined.setdefault((status, words), {"status": status, "words": words, "count": 0, "meant": ""})
            row["count"] += kind.count
            row["meant"] = row["meant"] or _MEANT[kind.verdict]
        return list(joined.values())


class RefusedRequests:
    """Remember the kinds of requests that one tier has refused and another has answered, for ten minutes each.

    A kind is the tenant, the names of the request's fields, the capabilities that it needs, the form of its answer and
    its choice of tools. A refusal with some number of tools counts only for requests with at least as many. Use it from
    one event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.kinds: OrderedDict[RefusedKind, tuple[float, int]] = OrderedDict()
        """Until when, and of how many tools on; empty for nearly all tiers, which then need not be asked."""

    def note(self, tenant: str, body: Mapping[str, object], needed: Set[str], tools: int) -> None:
        """Remember that a request was refused; one that needs no capability is of no kind."""
        if needed:
            self.kinds[_kind_of(tenant, body, needed)] = self._clock() + CALLERS_S, tools
            if len(self.kinds) > _MOST:
                self.kinds.popitem(last=False)

    def has(self, tenant: str, body: Mapping[str, object], needed: Set[str], tools: int) -> bool:
        """Return whether such a request was refused in the last ten minutes; what is older is forgotten."""
        kind = _kind_of(tenant, body, needed)
        until, least = self.kinds.get(kind, (inf, tools + 1))
        if until <= self._clock():
            del self.kinds[kind]
        return tools >= least and kind in self.kinds


def _kind_of(tenant: str, body: Mapping[str, object], needed: Set[str]) -> RefusedKind:
    forms = orjson.dumps([body.get("response_format"), body.get("tool_choice")], default=str)
    return tenant, frozenset(body), frozenset(needed), forms


_MEANT: Final = {"": "", "cannot": "another tier answered", "callers": "no tier took it"}
