"""Read the headers of a request, and the options that it sets in them: surface, tiers, deadlines, cache.

REQUEST_HEADERS is the one list of them: `known_headers` selects by it, so no other header can be read, and the OpenAPI
document is made of it. The policy clamps the options.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cache.scopes import tags
from gateway.errors import InvalidRequest
from gateway.request.cache_control import NO_CONTROL, CacheControl, read_cache_control

TIER_PREFIX: Final = "tier:"
TRY: Final = b"x-tierline-try"
"""Header that names the version of the policy which is to answer."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """What a header of a request does.

    `text` describes it; empty for what belongs to HTTP or to signing in, which OpenAPI describes in other ways. `at`:
    the operations that read it, all of them, those that answer or pass on, or one of the two. `option`: `read_options`
    reads it. `several`: a list, which may be spread over several headers of the name.
    """

    text: str = ""
    at: Literal["all", "calls", "answers", "passed"] = "calls"
    option: bool = False
    several: bool = False


REQUEST_HEADERS: Final[Mapping[bytes, RequestHeader]] = {
    name.encode(): RequestHeader(**what)
    for name, what in tomllib.loads(Path(__file__).with_name("request_headers.toml").read_text("utf-8")).items()
}
_OPTIONS: Final = frozenset(name for name, header in REQUEST_HEADERS.items() if header.option)
_LISTS: Final = frozenset(name for name, header in REQUEST_HEADERS.items() if header.several)
_MAX_ID = 128
_MOST: Final = 1e9
"""Upper bound of a valid time, in milliseconds or seconds; larger values are treated as invalid."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of one request. `deadline_s` and `ttft_s` are the smallest of its values, None if it set none.

    `tpot_s` is the time per output token after the first that the client wants of a stream.
    """

    surface: str | None = None
    cache: CacheControl = NO_CONTROL
    tags: tuple[str, ...] = ()
    """Tags of the stored answer, such as its sources: purging one of them removes the answer from the cache."""
    min_tier: str | None = None
    max_tier: str | None = None
    deadline_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None


_NO_OPTIONS: Final = RequestOptions()


def known_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers that the gateway reads, by lower-case name.

    Of a repeated header the first counts; repeated list headers are joined with commas.
    """
    selected: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in REQUEST_HEADERS:
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
        tpot_s=_pace(headers),
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


def _pace(headers: dict[bytes, bytes]) -> float | None:
    """Return the client's limit for each further token in seconds, from llm-d's header (invalid: ignored)."""
    value = headers.get(b"x-llm-d-slo-tpot-ms")
    number = None if value is None else _number(value)
    return number / 1000 if number else None


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
