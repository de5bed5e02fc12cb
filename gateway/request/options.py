"""What a request asks for in its headers, read in one pass. A policy clamps it; nothing else is taken from headers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cache.scopes import tags
from gateway.errors import InvalidRequest
from gateway.request.cache_control import NO_CONTROL, CacheControl, read_cache_control

TIER_PREFIX: Final = "tier:"
_WISHES: Final = frozenset(
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
_KNOWN: Final = _WISHES | {
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"host",
    b"origin",
    b"traceparent",
    b"x-request-id",
    b"x-stainless-retry-count",
    b"x-tierline-debug",
}
_LISTS: Final = frozenset({b"cache-control", b"x-tierline-cache", b"x-tierline-cache-tags"})
_MAX_ID = 128
_MOST: Final = 1e9
"""Milliseconds or seconds: in either it is no time that anybody waits."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The request's own limits. `deadline_s` and `ttft_s` are the least of what the client's headers say, None if none
    does.
    """

    surface: str | None = None
    cache: CacheControl = NO_CONTROL
    tags: tuple[str, ...] = ()
    """What the answer is drawn from: it goes from the cache when one of these changes."""
    min_tier: str | None = None
    max_tier: str | None = None
    deadline_s: float | None = None
    ttft_s: float | None = None


_NO_WISHES: Final = RequestOptions()


def known_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers that mean something to us, by lower-case name; of repeated ones the first, of repeated lists all."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _KNOWN:
            if name not in found:
                found[name] = value
            elif name in _LISTS:
                found[name] += b"," + value
    return found


def read_options(headers: dict[bytes, bytes]) -> RequestOptions:
    """The wishes in `headers` (see `known_headers`); raises InvalidRequest for one that cannot be meant."""
    if headers.keys().isdisjoint(_WISHES):
        return _NO_WISHES
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
    """The client's request id where it may be echoed: 1 to 128 visible ASCII characters."""
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
    own = _milliseconds(headers, b"x-tierline-deadline-ms", least=-_MOST)  # what is left can be less than nothing
    limits = [] if own is None else [own]
    for name in (b"x-stainless-read-timeout", b"x-stainless-timeout"):
        seconds = _number(headers[name]) if name in headers else None
        if seconds is not None and seconds > 0:
            limits.append(seconds)
    return min(limits) if limits else None


def _first_token(headers: dict[bytes, bytes]) -> float | None:
    """The client's limit for the first token: in our own header, or in llm-d's, of which nonsense is passed over."""
    own = _milliseconds(headers, b"x-tierline-ttft-ms")
    theirs = _number(headers[b"x-llm-d-slo-ttft-ms"]) if b"x-llm-d-slo-ttft-ms" in headers else None
    limits = [limit for limit in (own, theirs / 1000 if theirs else None) if limit is not None]
    return min(limits) if limits else None


def _milliseconds(headers: dict[bytes, bytes], name: bytes, least: float = 0) -> float | None:
    """The seconds in one of our own headers; raises InvalidRequest for what is not a number, or not such a one."""
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
