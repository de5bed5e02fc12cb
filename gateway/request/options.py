"""Parse the options that a request sets in its headers: surface, tiers, deadlines, cache. The policy clamps them.

The directives for the cache, in the standard `Cache-Control` header and in `x-tierline-cache`, are

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cache.planning.plan import NO_DEMANDS, Demands
from cache.scopes import tags
from gateway.errors import InvalidRequest

TIER_PREFIX: Final = "tier:"
_OPTIONS: Final = frozenset(
    {
        b"cache-control",
        b"x-stainless-read-timeout",
        b"x-stainless-timeout",
        b"x-llm-d-slo-ttft-ms",
        b"x-tierline-cache",
        b"x-tierline-cache-tags",
        b"x-tierline-deadline-ms",
        b"x-tierline-max-tier",
        b"x-tierline-min-tier",
        b"x-tierline-surface",
        b"x-tierline-ttft-ms",
    }
)
_KNOWN: Final = _OPTIONS | {
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"host",
    b"origin",
    b"traceparent",
    b"tracestate",
    b"x-api-key",
    b"x-request-id",
    b"x-stainless-retry-count",
    b"x-tierline-debug",
    b"x-tierline-try",
}
_LISTS: Final = frozenset({b"cache-control", b"tracestate", b"x-tierline-cache", b"x-tierline-cache-tags"})
_MAX_ID = 128
_MOST: Final = 1e9
"""Upper bound of a valid time, in milliseconds or seconds; larger values are treated as invalid."""
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


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of one request. `deadline_s` and `ttft_s` are the smallest of its values, None if it set none."""

    surface: str | None = None
    cache: CacheControl = NO_CONTROL
    tags: tuple[str, ...] = ()
    """Tags of the stored answer, such as its sources: purging one of them removes the answer from the cache."""
    min_tier: str | None = None
    max_tier: str | None = None
    deadline_s: float | None = None
    ttft_s: float | None = None


_NO_OPTIONS: Final = RequestOptions()


def known_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers that the gateway reads, by lower-case name.

    Of a repeated header the first counts; repeated list headers are joined with commas.
    """
    selected: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _KNOWN:
            if name not in selected:
                selected[name] = value
            elif name in _LISTS:
                selected[name] += b"," + value
    return selected


def read_options(headers: dict[bytes, bytes]) -> RequestOptions:
    """Return the options in `headers` (see `known_headers`). Raises InvalidRequest for an invalid one."""
    if headers.keys().isdisjoint(_OPTIONS):
        return _NO_OPTIONS
    return RequestOptions(
        surface=_text(headers, b"x-tierline-surface"),
        cache=read_cache_control(headers.get(b"cache-control"), headers.get(b"x-tierline-cache")),
        tags=_tags(headers.get(b"x-tierline-cache-tags")),
        min_tier=_text(headers, b"x-tierline-min-tier"),
        max_tier=_text(headers, b"x-tierline-max-tier"),
        deadline_s=_deadline(headers),
        ttft_s=_first_token(headers),
    )


def valid_request_id(value: bytes | None) -> str | None:
    """Return the client's request id if it is valid, 1 to 128 visible ASCII characters, else None."""
    if not value or len(value) > _MAX_ID:
        return None
    text = value.decode("latin-1")
    return text if text.isascii() and text.isprintable() and " " not in text else None


def _tags(value: bytes | None) -> tuple[str, ...]:
    if not value:
        return ()
    try:
        return tags.parse(value)
    except tags.BadTags as error:
        name = "x-tierline-cache-tags"
        raise InvalidRequest(f"{name} {error}.", code="unsupported_value", param=name) from None


def _text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return value.decode("latin-1").strip() or None if value else None


def _deadline(headers: dict[bytes, bytes]) -> float | None:
    own = _milliseconds(headers, b"x-tierline-deadline-ms", least=-_MOST)  # negative once the deadline has passed
    limits = [] if own is None else [own]
    for name in (b"x-stainless-read-timeout", b"x-stainless-timeout"):
        seconds = _number(headers[name]) if name in headers else None
        if seconds is not None and seconds > 0:
            limits.append(seconds)
    return min(limits) if limits else None


def _first_token(headers: dict[bytes, bytes]) -> float | None:
    """Return the client's limit for the first token in seconds, from our header or llm-d's (invalid: ignored)."""
    own = _milliseconds(headers, b"x-tierline-ttft-ms")
    theirs = _number(headers[b"x-llm-d-slo-ttft-ms"]) if b"x-llm-d-slo-ttft-ms" in headers else None
    limits = [limit for limit in (own, theirs / 1000 if theirs else None) if limit is not None]
    return min(limits) if limits else None


def _milliseconds(headers: dict[bytes, bytes], name: bytes, least: float = 0) -> float | None:
    """Return the seconds in one of our own headers, given in milliseconds. Raises InvalidRequest if it is invalid."""
    value = headers.get(name)
    if value is None:
        return None
    number = _number(value, least)
    if number is None:
        text = name.decode()
        raise InvalidRequest(f"{text} is a number of milliseconds.", code="unsupported_value", param=text)
    return number / 1000


def _number(value: bytes, least: float = 0) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if least <= number < _MOST else None


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
