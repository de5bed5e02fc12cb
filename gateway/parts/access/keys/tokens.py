"""Read what a token (JWT) says of itself, before anybody has verified it, and the claims that config names.

Nothing here needs a library, so a gateway can tell a token from a key without one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

MOST: Final = 16384
"""Longest token in bytes."""


class BadToken(Exception):
    """A token that is not accepted; the message says why, after the words `The token is not accepted:`."""


def is_token(key: bytes) -> bool:
    """Return whether a key has the form of a JWT: three parts, of which the first is a JSON object."""
    return key.startswith(b"eyJ") and key.count(b".") == 2


def issuer_in(token: bytes) -> str:
    """Return who claims to have issued a token; empty for nobody. Raises BadToken. Nothing is verified yet."""
    if len(token) > MOST:
        raise BadToken(f"it is longer than {MOST} bytes")
    header, payload, _ = token.split(b".")
    _decoded(header)
    issuer = _decoded(payload).get("iss")
    return issuer if isinstance(issuer, str) else ""


def claims_in(payload: bytes) -> Mapping[str, Any]:
    """Return the object that JSON holds. Raises BadToken for anything else, and for a claim that is there twice."""
    try:
        claims = json.loads(payload, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise BadToken("it holds no claims that can be read, or one of them twice") from None
    if not isinstance(claims, dict):
        raise BadToken("it holds no claims")
    return claims


def claim_in(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim; of `a.b`, where there is none of that name, `b` in the object `a`. None if it is not there.

    An e-mail address that its provider has not verified is anybody's to choose, so it counts as not there.
    """
    if name == "email" and claims.get("email_verified") is not True:
        return None
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def is_left_out(claims: Mapping[str, Any], name: str) -> bool:
    """Return whether a claim is not in a token because it is too long: the provider says where else it can be had.

    Entra does so from 200 groups on (`_claim_names`, OpenID Connect's distributed claims), and with `hasgroups`.
    """
    elsewhere = claims.get("_claim_names")
    named = isinstance(elsewhere, Mapping) and name in elsewhere
    return claim_in(claims, name) is None and (named or (name == "groups" and bool(claims.get("hasgroups"))))


def texts(value: Any, *, split: bool = False) -> tuple[str, ...]:
    """Return the texts of a claim that is one or a list; with `split`, one is several with spaces between."""
    if isinstance(value, str):
        return tuple(value.split()) if split else (value,)
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def _decoded(part: bytes) -> Mapping[str, Any]:
    try:
        return claims_in(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except binascii.Error:
        raise BadToken("it is no JWT") from None


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(name)
        found[name] = value
    return found
