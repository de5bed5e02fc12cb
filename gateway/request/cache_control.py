"""What a request asks of the cache, in the standard `Cache-Control` header and in our own `x-tierline-cache`.

    no-cache            a fresh answer, which may be stored
    no-store            one that leaves the cache alone altogether
    only-if-cached      a stored one, or none: no model is called
    max-age=SECONDS     none that is older
    min-fresh=SECONDS   none that has less time left
    min-similarity=X    (ours alone) none of a question that is less similar, 0..1; the policy's own limit stays

Both headers hold, the stricter word of the two. In the standard one what is not known or makes no sense is passed
over, as RFC 9111 (5.2) has it: proxies and libraries set it on their own. Ours is set on purpose, so what it cannot
mean is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cache.planning.plan import NO_DEMANDS, Demands
from gateway.errors import InvalidRequest

OWN_HEADER: Final = "x-tierline-cache"
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
    """`read` and `write`: whether stored answers may be looked up, and this one kept."""

    read: bool = True
    write: bool = True
    only_if_cached: bool = False
    demands: Demands = NO_DEMANDS


NO_CONTROL: Final = CacheControl()


def read_cache_control(standard: bytes | None, own: bytes | None) -> CacheControl:
    """What both headers come to; raises InvalidRequest for what ours cannot mean."""
    said = [(name, value) for name, value in _directives(standard) if _is_meant(name, value) and name != _SIMILARITY]
    for name, value in _directives(own):
        if not _is_meant(name, value):
            raise InvalidRequest(f"{OWN_HEADER} takes {_MEANING}.", code="unsupported_value", param=OWN_HEADER)
        said.append((name, value))
    if not said:
        return NO_CONTROL
    flags = {name for name, _ in said}
    ages = [float(value) for name, value in said if name == "max-age"]
    fresh = [float(value) for name, value in said if name == "min-fresh"]
    similar = [float(value) for name, value in said if name == _SIMILARITY]
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
    """The directives in lower case, each with its value, '' without; a value may stand in quotes."""
    for part in (header or b"").decode("latin-1").lower().split(","):
        name, _, value = part.partition("=")
        if name.strip():
            yield name.strip(), value.strip().strip('"')


def _is_meant(name: str, value: str) -> bool:
    if name in _FLAGS:
        return not value
    if name in _SECONDS:
        return _DIGITS.fullmatch(value) is not None
    return name == _SIMILARITY and _SHARE.fullmatch(value) is not None
