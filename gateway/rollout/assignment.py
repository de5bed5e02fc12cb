"""Decide which requests of a surface get the candidate policy that is tried on a share of them.

The sticky unit (a conversation, an API key or a tenant) is hashed with the candidate's version to a number of 64 bits;
the units whose number is below the share of all numbers get the candidate. So a unit stays with its policy, who is in
at 1% is in at 5% too, and another candidate gets other units.

`conversation_of` names the conversation of a request by what stays the same in each of its turns. The name is of what
the client sent, so it needs no store and is the same in every worker. Two conversations of one user that begin with the
same words share it; so do those of several users whose client names none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from gateway.config.schema import key_digest

if TYPE_CHECKING:
    from policies.loader import RollingPolicy

CONTROL: Final = "control"
CANDIDATE: Final = "candidate"
_NUMBERS: Final = 1 << 64


class Assignment(NamedTuple):
    """What one request got: `arm` is `control` or `candidate`, `unit` its sticky unit's hash, 16 hex digits."""

    arm: str
    unit: str


def assign(rolling: RollingPolicy, tenant: str, bearer: bytes, messages: Sequence[Mapping[str, Any]]) -> Assignment:
    """Return what a request of the candidate's surface gets. `bearer` is its API key, `messages` those of its body."""
    if rolling.sticky == "conversation":
        unit = orjson.dumps((tenant, beginning(messages)), default=str)
    elif rolling.sticky == "key" and bearer:
        unit = b"key:" + key_digest(bearer)
    else:
        unit = b"tenant:" + tenant.encode()
    number = int.from_bytes(blake2b(unit, digest_size=8, key=rolling.salt.encode()[:64]).digest())
    return Assignment(CANDIDATE if number < rolling.share * _NUMBERS else CONTROL, f"{number:016x}")


def beginning(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the messages up to the first of the user: the same in every turn of a conversation.

    A client that drops or rewrites the first messages of a long conversation begins another one by that.
    """
    for number, message in enumerate(messages, 1):
        if message.get("role") == "user":
            return messages[:number]
    return messages[:1]


_MOST: Final = 2000
"""Characters of each text that are read, so that a long prompt costs no more time than a short one."""
_OF_USER: Final = ("prompt_cache_key", "safety_identifier", "user")


def conversation_of(tenant: str, body: Mapping[str, Any]) -> str:
    """Return the name of a request's conversation, 16 hex digits: a hash of its tenant, its user and its beginning."""
    told = [tenant, *[str(body.get(name) or "") for name in _OF_USER]]
    metadata = body.get("metadata")
    told.append(str(metadata.get("user_id") or "") if type(metadata) is dict else "")
    for message in beginning(body["messages"]):
        content = message.get("content")
        if type(content) is str:
            told.append(content[:_MOST])
        elif type(content) is list:
            told += [str(part["text"])[:_MOST] for part in content if type(part) is dict and "text" in part]
    return blake2b("\0".join(told).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
