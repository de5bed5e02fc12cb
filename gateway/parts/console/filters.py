"""Say which requests a page is about, from the query of its URL and back, and as a condition in SQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from gateway.parts.console.page import BadQuery
from gateway.telemetry import names
from policies.quantities import milliseconds

_TEXTS: Final = (
    "surface",
    "path",
    "tier",
    "backend",
    "model",
    "policy",
    "tenant",
    "team",
    "key",
    "user",
    "conversation",
    "kind",
    "arm",
    "error",
)
"""Filters that compare a column with a text; a leading `!` turns one round."""
_SPANS: Final = {"15m": 900, "1h": 3600, "6h": 6 * 3600, "24h": 86400, "7d": 7 * 86400, "30d": 30 * 86400}
_FLAGS: Final = {
    "slow": ("missed an objective", "slow"),
    "escalated": ("escalated", "path = 'escalated'"),
    "failed": ("failed", "status >= 500"),
    "refused": ("refused", "status >= 400 AND status < 500"),
    "hit": ("answered from the cache", "starts_with(path, 'cache')"),
    "hedged": ("hedged", "hedged"),
    "wasted": ("spent on unused answers", "wasted_tokens > 0"),
    "stream": ("streams", "stream"),
    "unpriced": ("of unknown price", "cost_unknown"),
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")
_UNITS_MS: Final = {"ms": 1.0, "s": 1000.0, "m": 60_000.0, None: 1.0}


PROMPT_SQL: Final = f"json_extract_string(hops, '$[0].attributes.\"{names.PROMPT}\"')"
"""The captured prompt of a request, in SQL; NULL where it was not captured."""


class BadFilter(BadQuery):
    """A filter in a URL that cannot be understood; the message says which and what it takes."""

    title = "There is no such filter"


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on requests, all of which hold. `since` is one of SPANS' names; '' for all that is kept."""

    texts: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    since: str = ""
    slower_ms: float | None = None
    search: str = ""
    """Beginning of a request id or a trace id."""
    prompt: str = ""
    """Words that the captured prompt holds, in either case."""

    @property
    def words(self) -> list[tuple[str, str]]:
        """Return each condition in words, with the URL's query that lacks it."""
        chips = [(f"{name} {value}", self._without(name)) for name, value in self.texts.items()]
        chips += [(_FLAGS[flag][0], self._without("is", flag)) for flag in self.flags]
        if self.since:
            chips.append((f"last {self.since}", self._without("since")))
        if self.slower_ms is not None:
            chips.append((f"slower than {milliseconds(self.slower_ms)}", self._without("slower")))
        if self.search:
            chips.append((f"id {self.search}…", self._without("q")))
        if self.prompt:
            chips.append((f"prompt with “{self.prompt}”", self._without("prompt")))
        return chips

    @property
    def equal(self) -> dict[str, str]:
        """The values that columns must have by this filter, by column; conditions with `!` are left out."""
        return {name: value for name, value in self.texts.items() if not value.startswith("!")}

    @property
    def query(self) -> str:
        """The query of the URL, without a question mark."""
        return urlencode(self._pairs())

    def with_(self, **changed: str) -> str:
        """Return the query of the URL with these filters set, or left out where they are ''."""
        pairs = [(name, value) for name, value in self._pairs() if name not in changed]
        return urlencode([*pairs, *((name, value) for name, value in changed.items() if value)])

    def where(self, now_s: float, exactly: str = "") -> tuple[str, dict[str, Any]]:
        """Return the condition in SQL over the view `requests`, and its values.

        `exactly` is a column that must equal the text searched for; '': `request_id` or `trace_id` begins with it.
        """
        parts: list[str] = []
        values: dict[str, Any] = {}
        for name, value in self.texts.items():
            negated = value.startswith("!")
            parts.append(f'"{name}" {"IS DISTINCT FROM" if negated else "="} ${name}')
            values[name] = value.removeprefix("!")
        parts += [f"({_FLAGS[flag][1]})" for flag in self.flags]
        if self.since:
            # By the time of the record's entry, which files are ordered by: older ones need not be read.
            parts.append("entry_ms >= $since_ms")
            values["since_ms"] = int((now_s - _SPANS[self.since]) * 1000)
        if self.slower_ms is not None:
            parts.append("coalesce(ttft_ms, total_ms) >= $slower_ms")
            values["slower_ms"] = self.slower_ms
        if self.search and exactly:
            parts.append(f"{exactly} = $search")
            values["search"] = self.search
        elif self.search:
            parts.append("(starts_with(request_id, $search) OR starts_with(trace_id, $search))")
            values["search"] = self.search
        if self.prompt:
            parts.append(f"contains(lower({PROMPT_SQL}), $prompt)")
            values["prompt"] = self.prompt.lower()
        return " AND ".join(parts) or "true", values

    def _pairs(self) -> list[tuple[str, str]]:
        pairs = [*self.texts.items(), *(("is", flag) for flag in self.flags)]
        pairs.append(("since", self.since or "all"))  # pages have a span where none is named
        pairs += [("slower", f"{self.slower_ms:g}ms")] if self.slower_ms is not None else []
        pairs += [("prompt", self.prompt)] if self.prompt else []
        return [*pairs, *([("q", self.search)] if self.search else [])]

    def _without(self, name: str, value: str | None = None) -> str:
        if name == "since":
            return self.with_(since="all")
        return urlencode([pair for pair in self._pairs() if pair[0] != name or value not in (None, pair[1])])


SPANS: Final = tuple(_SPANS)
SPANS_S: Final[Mapping[str, int]] = _SPANS
"""How long each is, in seconds, the shortest first."""
FLAGS: Final = {name: words for name, (words, _) in _FLAGS.items()}
NAMES: Final = frozenset({*_TEXTS, "is", "since", "slower", "q"})


def query_filter(pairs: list[tuple[str, str]], *, since: str = "") -> Filter:
    """Return the filter of a URL's query; other names are the page's own. `since` is the default. Raises BadFilter."""
    given = {name: value.strip() for name, value in pairs if name in NAMES and value.strip()}
    flags = tuple(dict.fromkeys(value for name, value in pairs if name == "is" and value))
    if unknown := [flag for flag in flags if flag not in _FLAGS]:
        raise BadFilter(f"is={unknown[0]} is not a filter; there are {', '.join(_FLAGS)}")
    since = given.get("since", since)
    if since == "all":
        since = ""
    if since and since not in _SPANS:
        raise BadFilter(f"since={since} is not a time span; there are {', '.join(_SPANS)} and all")
    slower = given.get("slower")
    match = _DURATION.fullmatch(slower) if slower else None
    if slower and match is None:
        raise BadFilter(f"slower={slower} is not a duration; write a number with its unit, such as 400ms or 2s")
    return Filter(
        {name: given[name] for name in _TEXTS if name in given},
        flags,
        since,
        float(match[1]) * _UNITS_MS[match[2]] if match else None,
        given.get("q", ""),
    )
