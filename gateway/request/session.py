"""Name the session, the conversation and the end user of a request, by what its client says, else by how it begins.

A session is what a person or an agent has, sub-agents included: its caps count them together, and it stays with one
policy of a rollout. A conversation is one thread of it, whose prompt a backend keeps warm. Clients name a session in a
header or in `prompt_cache_key`; then both names stay after the client has shortened its history. A thread's id, where
there is one, tells conversations of a session apart, else the beginning of the system text does: sub-agents have their
own. Without any id, both are named by the tenant, the user and the messages up to the user's first: two conversations
that begin with the same words share that name, and so do those of several users whose client names none.

Names are hashes with the tenant, so they are the same in every worker, no tenant's can be another's, and no id of a
client is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson

_SESSION: Final = (b"x-tierline-session", b"x-claude-code-session-id", b"session-id", b"thread-id")
_THREAD: Final = (b"thread-id", b"x-claude-code-agent-id")
_HEADERS: Final = frozenset((*_SESSION, *_THREAD))
_OF_USER: Final = ("safety_identifier", "user")
_IN_USER: Final = "_session_"
"""What stands before the session in the older form of the user that Claude Code names."""
_MOST: Final = 2000
"""Characters of each text that are read, so that a long prompt costs no more time than a short one."""
_MOST_OF_SYSTEM: Final = 500
"""Characters of the system text by which threads of a session are told apart: later ones may change, as a date does."""


class Session(NamedTuple):
    """Both names, 16 hex digits each; `told` is whether the client names its session."""

    name: str
    conversation: str
    told: bool


def session_of(tenant: str, headers: Mapping[bytes, bytes], body: Mapping[str, Any]) -> Session:
    """Return the session and the conversation of a request: its headers are `known_headers`, its body is checked."""
    named = thread = b""
    if not headers.keys().isdisjoint(_HEADERS):
        named, thread = _first(headers, _SESSION), _first(headers, _THREAD)
    if not named and (key := body.get("prompt_cache_key")):
        named = str(key).encode("utf-8", "surrogatepass")
    if not named:
        name = _hashed(tenant.encode(), _beginning_of(body).encode("utf-8", "surrogatepass"))
        return Session(name, name, False)
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
    told = [str(body.get(name) or "") for name in _OF_USER]
    metadata = body.get("metadata")
    told.append(str(metadata.get("user_id") or "") if type(metadata) is dict else "")
    for message in body["messages"]:
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
        return [content[:_MOST]]
    if type(content) is list:
        return [str(part["text"])[:_MOST] for part in content if type(part) is dict and "text" in part]
    return []


def _hashed(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=8).hexdigest()
