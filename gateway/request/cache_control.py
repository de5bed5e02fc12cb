"""Parse the directives for the cache, in the standard `Cache-Control` header and in `x-tierline-cache`.

    no-cache            do not look up stored answers; the new answer may be stored
    no-store            neither look up nor store
    only-if-cached      answer from the cache or with 504; call no model
    max-age=SECONDS     accept no stored answer older than this
    min-fresh=SECONDS   accept no stored answer that expires sooner than this
    min-similarity=X    (x-tierline-cache only) accept no answer to a less similar question, 0 to 1; the policy's own
                        limit applies too

Both headers apply, with the stricter value of each. In the standard one, unknown and invalid directives are ignored, as
RFC 9111 (5.2) requires: proxies and libraries may set it without the caller's knowledge. In `x-tierline-cache` they are
an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cache.entry import NO_DEMANDS, Demands
from gateway.errors import InvalidRequest

_OWN_HEADER: Final = "x-tierline-cache"
_FLAGS: Final = frozenset({"no-cache", "no-store", "only-if-cached"})
_SECONDS: Final = frozenset({"max-age", "min-fresh"})
_SIMILARITY: Final = "min-similarity"
_DIGITS: Final = re.compile(r"\d{1,10}")
_SHARE: Final = re.compile(r"0(?:\.\d{1,9})?|1(?:\.0{1,9})?|\.\d{1,9}")
_MEANING: Final = (
    "no-cache, no-store, only-if-cached, max-age=SECONDS, min-fresh=SECONDS "
    "and min-similarity=0..1, with commas between them"
)


@dataclass(frozen=True, slots=True)
class CacheControl:
    """Parsed directives. `read`: stored answers may be looked up; `write`: this answer may be stored."""

    read: bool = True
    write: bool = True
    only_if_cached: bool = False
    demands: Demands = NO_DEMANDS


NO_CONTROL: Final = CacheControl()


def read_cache_control(standard: bytes | None, own: bytes | None) -> CacheControl:
    """Return the directives of both headers combined. Raises InvalidRequest for an invalid `x-tierline-cache`."""
    directives = [(name, value) for name, value in _directives(standard) if _is_valid(name, value)]
    directives = [(name, value) for name, value in directives if name != _SIMILARITY]
    for name, value in _directives(own):
        if not _is_valid(name, value):
            raise InvalidRequest(f"{_OWN_HEADER} takes {_MEANING}.", code="unsupported_value", param=_OWN_HEADER)
        directives.append((name, value))
    if not directives:
        return NO_CONTROL
    flags = {name for name, _ in directives}
    ages = [float(value) for name, value in directives if name == "max-age"]
    fresh = [float(value) for name, value in directives if name == "min-fresh"]
    similar = [float(value) for name, value in directives if name == _SIMILARITY]
    demanded = ages or fresh or similar
    return CacheControl(
        read=flags.isdisjoint(("no-cache", "no-store")),
        write="no-store" not in flags,
        only_if_cached="only-if-cached" in flags,
        demands=Demands(min(ages, default=None), max(fresh, default=0.0), max(similar, default=0.0))
        if demanded
        else NO_DEMANDS,
    )


def _directives(header: bytes | None) -> Iterator[tuple[str, str]]:
    """Yield each directive in lower case with its value, '' if it has none; quotes around a value are removed."""
    for part in (header or b"").decode("latin-1").lower().split(","):
        name, _, value = part.partition("=")
        if name.strip():
            yield name.strip(), value.strip().strip('"')


def _is_valid(name: str, value: str) -> bool:
    if name in _FLAGS:
        return not value
    if name in _SECONDS:
        return _DIGITS.fullmatch(value) is not None
    return name == _SIMILARITY and _SHARE.fullmatch(value) is not None
