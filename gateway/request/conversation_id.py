"""Name the conversation that a request belongs to: by what stays the same in each of its turns.

The name is of what the client sent, so it needs no store and is the same in every worker. Two conversations of one user
that begin with the same words share it; so do those of several users whose client names none.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from gateway.rollout.assignment import beginning

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
