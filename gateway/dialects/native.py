"""Carry what chat completions cannot express from a client to a backend of the same dialect, and back.

A translated body holds the client's own body under `NATIVE`:

    {"dialect": "responses", "body": {...}, "lost": {"truncation": "auto"}, "needs": ["responses_hosted_tools"],
     "paths": [...]}

A backend of that dialect sends this body, with the gateway's changes, instead of translating it back; any other backend
leaves it out and reports `lost`, the fields that the translation could not express (values by path), as dropped.
`needs` are capabilities (`routing.features.FURTHER`) without which a tier could not answer. `paths` says where
each message comes from, see `gateway.dialects.client_paths`. All but the body and the paths is part of the request's
fingerprint: an answer is shared between clients of one dialect only.

An answer of such a backend holds its own form too, in `message[NATIVE]` or `delta[NATIVE]`: a list of the dialect's
events, which joins like any list when chunks are assembled. Only a body with NATIVE of the same dialect gets one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from cache.planning import plan

NATIVE: Final = plan.NATIVE
"""Key of the native form in a body, a message and a delta. Clients may not send it."""
Dialect = Literal["chat", "responses", "messages"]
"""OpenAI's chat completions, OpenAI's responses, Anthropic's messages."""


def native_body(body: Mapping[str, Any], dialect: Dialect) -> dict[str, Any] | None:
    """Return the client's own body if the client speaks this dialect, else None."""
    native = body.get(NATIVE)
    return native["body"] if native is not None and native["dialect"] == dialect else None


def lost_fields(body: Mapping[str, Any], dialect: Dialect) -> tuple[str, ...]:
    """Return the paths of the client's fields that a backend of this dialect does not get by way of the translation."""
    native = body.get(NATIVE)
    return tuple(native["lost"]) if native is not None and native["dialect"] != dialect else ()


def needs_of(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the further capabilities that a translated body needs of a tier."""
    return frozenset(body[NATIVE].get("needs", ()))
