"""Read the headers of a request, the options that it sets in them, and to which session it belongs.

REQUEST_HEADERS is the one list of them: `known_headers` selects by it, so no other header can be read, and the OpenAPI
document is made of it. The policy clamps the options.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import orjson

from cache.entry import NO_DEMANDS, Demands
from cache.scopes import tags
from gateway.errors import InvalidRequest
from policies.value_type import from_fields

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
    """Directives of `Cache-Control` and `x-tierline-cache`: `read` lets stored answers be looked up, `write` be stored.

    no-cache            do not look up stored answers; the new answer may be stored
    no-store            neither look up nor store
    only-if-cached      answer from the cache or with 504; call no model
    max-age=SECONDS     accept no stored answer older than this
    min-fresh=SECONDS   accept no stored answer that expires sooner than this
    min-similarity=X    (x-tierline-cache only) accept no answer to a less similar question, 0 to 1; the policy's own
                        limit applies too

    Both headers apply, with the stricter value of each. In the standard one, unknown and invalid directives are
    ignored, as RFC 9111 (5.2) requires: proxies and libraries may set it without the caller's knowledge. In
    `x-tierline-cache` they are an error.
    """

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


_SESSION: Final = (b"x-tierline-session", b"x-claude-code-session-id", b"session-id", b"thread-id")
_THREAD: Final = (b"thread-id", b"x-claude-code-agent-id")
_HEADERS: Final = frozenset((*_SESSION, *_THREAD))
_IN_USER: Final = "_session_"
"""What stands before the session in the older form of the user that Claude Code names."""
_MOST_CHARS: Final = 2000
"""Characters of each text that are read, so that a long prompt costs no more time than a short one."""
_MOST_OF_SYSTEM: Final = 500
"""Characters of the system text by which threads of a session are told apart: later ones may change, as a date does."""


class Session(NamedTuple):
    """What a request belongs to, by what its client says, else by how it begins. Both names are 16 hex digits.

    A session (`name`) is what a person or an agent has, sub-agents included: its caps count them together, and it stays
    with one policy of a rollout. A conversation is one thread of it, whose prompt a backend keeps warm. Clients name a
    session in a header or in `prompt_cache_key` (`told`); then both names stay after the client has shortened its
    history. A thread's id, where there is one, tells conversations of a session apart, else the beginning of the system
    text does: sub-agents have their own. Without any id, both are named by the tenant, the user and the messages up to
    the user's first: two conversations that begin with the same words share that name, and so do those of several users
    whose client names none.

    Names are hashes with the tenant, so they are the same in every worker, no tenant's can be another's, and no id of a
    client is stored.
    """

    name: str
    conversation: str
    told: bool


_session: Final = from_fields(Session)


def session_of(tenant: str, headers: Mapping[bytes, bytes], body: Mapping[str, Any]) -> Session:
    """Return the session and the conversation of a request: its headers are `known_headers`, its body is checked."""
    named = thread = b""
    if not headers.keys().isdisjoint(_HEADERS):
        named, thread = _first(headers, _SESSION), _first(headers, _THREAD)
    if not named and (key := body.get("prompt_cache_key")):
        named = str(key).encode("utf-8", "surrogatepass")
    if not named:
        begins = f"{tenant}\0{_beginning_of(body)}".encode("utf-8", "surrogatepass")
        name = blake2b(begins, digest_size=8).hexdigest()
        return _session((name, name, False))
    own = (thread,) if thread else (b"", _system_text(body["messages"]).encode("utf-8", "surrogatepass"))
    return Session(_hashed(tenant.encode(), named), _hashed(tenant.encode(), named, *own), True)


def user_of(tenant: str, body: Mapping[str, Any]) -> str:
    """Return the name of the end user whom a request names, in its client's own words; empty if it names none.

    A hash with the tenant, so that no id of a client is stored. Claude Code's id has the session in it, which is left
    out: a person has many.
    """
    user = body.get("safety_identifier") or body.get("user")
    if not user and type(metadata := body.get("metadata")) is dict:
        user = metadata.get("user_id")
    if not isinstance(user, str) or not user:
        return ""
    if user.startswith("{"):
        user = _without_session(user)
    elif _IN_USER in user:
        user = user.partition(_IN_USER)[0]
    return _hashed(tenant.encode(), user.encode("utf-8", "surrogatepass"))


def _without_session(user: str) -> str:
    try:
        value = orjson.loads(user)
    except ValueError:
        return user
    if not isinstance(value, dict):
        return user
    return orjson.dumps({name: value[name] for name in sorted(value) if name != "session_id"}).decode()


def _first(headers: Mapping[bytes, bytes], names: Sequence[bytes]) -> bytes:
    return next((value for name in names if (value := headers.get(name, b"").strip())), b"")


def _beginning_of(body: Mapping[str, Any]) -> str:
    """Return who asks, and the texts up to the first of the user: the same in every turn of a conversation."""
    metadata = body.get("metadata")
    account = metadata.get("user_id") if type(metadata) is dict else ""
    told = [str(body.get("safety_identifier") or ""), str(body.get("user") or ""), str(account or "")]
    for message in body["messages"]:
        content = message.get("content")
        if type(content) is str:  # of nearly every message, and so without a call
            told.append(content[:_MOST_CHARS])
        else:
            told += _texts(message)
        if message.get("role") == "user":
            break
    return "\0".join(told)


def _system_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the beginning of the system text."""
    told: list[str] = []
    for message in messages:
        if message.get("role") not in ("system", "developer"):
            break
        told += _texts(message)
    return "".join(told)[:_MOST_OF_SYSTEM]


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    if type(content) is str:
        return [content[:_MOST_CHARS]]
    if type(content) is list:
        return [str(part["text"])[:_MOST_CHARS] for part in content if type(part) is dict and "text" in part]
    return []


def _hashed(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=8).hexdigest()
