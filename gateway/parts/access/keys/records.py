"""Define what the registry of keys holds.

    KeyRecord     one key: whose it is, what it may use, until when; never the key itself
    OwnerRecord   the terms of a team or a tenant, and of each of its end users and sessions

Records are stored as JSON objects with these fields, under the digest of the key or the name of the owner.

Make keys, tell a mistyped one from an unknown one, and hash them as they are stored.

A key is `tl_`, 28 random characters (166 bits) and a checksum of all before it (6 characters), in base62: PATTERN finds
leaked ones, and a typing error is told without a lookup. What is stored is the HMAC-SHA256 of the key, by the
deployment's secret (TIERLINE_KEY_SECRET) where there is one, so that who reads the store cannot even test a guess;
without it by CONTEXT, which is public: 166 random bits cannot be guessed either way.
"""

from __future__ import annotations

import hmac
import os
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from sys import intern
from typing import Any, Final, Literal
from zlib import crc32

import orjson

from gateway.config.schema import key_digest
from gateway.parts.access.quotas.terms import NO_TERMS, Terms

PREFIX: Final = b"tl_"
PATTERN: Final = r"\btl_[0-9A-Za-z]{34}\b"
"""Regular expression of a key, for secret scanners."""
SECRET: Final = "TIERLINE_KEY_SECRET"  # noqa: S105  (the variable's name)
CONTEXT: Final = b"tierline keys, version 1"
_DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM: Final = 28
_CHECK: Final = 6
_ID: Final = "abcdefghijkmnpqrstuvwxyz23456789"
"""Characters of ids: none that looks like another."""


def new_key() -> str:
    """Return a new key."""
    text = PREFIX.decode() + "".join(secrets.choice(_DIGITS) for _ in range(_RANDOM))
    return text + _checksum(text.encode())


def new_id() -> str:
    """Return the id of a new key, such as `k_7fq2mzk4ab`; it is no secret."""
    return "k_" + "".join(secrets.choice(_ID) for _ in range(10))


def is_mistyped(key: bytes) -> bool:
    """Return whether a key that begins with `tl_` cannot be one, by its length and its checksum."""
    return len(key) != len(PREFIX) + _RANDOM + _CHECK or _checksum(key[:-_CHECK]).encode() != key[-_CHECK:]


def secret_of(environ: Mapping[str, str] = os.environ) -> bytes:
    """Return what keys are hashed by: the deployment's secret, else CONTEXT."""
    return environ.get(SECRET, "").encode() or CONTEXT


def hashed_by(secret: bytes) -> str:
    """Return a mark of the secret that keys are hashed by: equal for equal secrets, and telling nothing else."""
    return hmac.digest(secret, b"which secret", "sha256").hex()[:16]


def digest_of(key: bytes, secret: bytes) -> bytes:
    """Return the name under which a key's record is stored, 32 bytes: that of an imported key is its plain SHA-256."""
    return hmac.digest(secret, key, "sha256") if key[:3] == PREFIX else key_digest(key)


def _checksum(text: bytes) -> str:
    number, digits = crc32(text), ""
    for _ in range(_CHECK):
        number, digit = divmod(number, len(_DIGITS))
        digits += _DIGITS[digit]
    return digits


LATEST: Final = 253_402_300_799.0
"""Unix seconds of the last date that can be shown, the end of the year 9999."""
State = Literal["active", "disabled", "revoked"]
STATE_AFTER: Final[Mapping[str, State]] = {"disable": "disabled", "enable": "active", "revoke": "revoked"}
"""The state of a key after an action of that name."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One key. `id` names it in figures, traces and commands; its secret is known to whoever got it alone."""

    id: str
    digest: str
    """HMAC of the key, 64 hex digits: the name under which it is stored."""
    tenant: str
    team: str = ""
    name: str = ""
    """What people call it."""
    owner: str = ""
    """The person whose key it is, as an identity provider names them; empty for a program's."""
    maker: str = ""
    """Id of the identity that made it for itself, and whose limits it counts against; empty where a role made it."""
    maker_terms: Terms = NO_TERMS
    """The limits of that identity, for its own token and all keys that it made together."""
    state: State = "active"
    surfaces: tuple[str, ...] = ()
    """Surfaces that it may use; empty for all. So with `tiers` and `models`."""
    tiers: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """What may answer it: models of backends, and names that lead there (`keys.key_caller`); empty for all."""
    default_surface: str = ""
    """Surface of requests whose model is `auto` or unknown; empty for the deployment's."""
    terms: Terms = NO_TERMS
    per_user: Terms = NO_TERMS
    """Terms of each end user of its requests, and of each session."""
    per_session: Terms = NO_TERMS
    may_try: bool = False
    expires: float | None = None
    """Unix seconds from which on it is refused; None for never."""
    created: float = 0.0
    created_by: str = ""
    replaces: str = ""
    """Digest of the key that this one replaced; that one is valid until its own `expires`."""
    imported: bool = False
    """Whether it comes from another gateway: then `digest` is its plain SHA-256, and it need not begin with `tl_`."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    revision: int = 1


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The terms of a team or a tenant."""

    kind: Literal["team", "tenant"]
    name: str
    """Of a team of one tenant `TENANT/TEAM`; without a tenant those of the default one, and what holds in every other
    tenant that says nothing of its own, in each for itself."""
    terms: Terms = NO_TERMS
    per_user: Terms = NO_TERMS
    per_session: Terms = NO_TERMS
    surfaces: tuple[str, ...] = ()
    """Surfaces that its keys may have; empty for all. So with `tiers`."""
    tiers: tuple[str, ...] = ()
    longest_life_s: float | None = None
    """Longest life of a key that is made for it by somebody else than an admin, in seconds; None for any."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    revision: int = 1


def shown(record: KeyRecord | OwnerRecord) -> dict[str, Any]:
    """Return the record as JSON values, without what is empty or as by default."""
    values = {column.name: getattr(record, column.name) for column in fields(record)}
    plain = {name: value.plain() if isinstance(value, Terms) else value for name, value in values.items()}
    return {name: value for name, value in plain.items() if value or name in _ALWAYS}


def public(record: KeyRecord | OwnerRecord) -> dict[str, Any]:
    """Return what `shown` returns for everybody: nothing that a key could be tested by."""
    return {name: value for name, value in shown(record).items() if name not in ("digest", "replaces")}


def state_at(key: KeyRecord, now: float) -> str:
    """Return the state of a key as people see it at a time, in Unix seconds: an active one may have expired."""
    return "expired" if key.state == "active" and key.expires is not None and key.expires <= now else key.state


def to_json(record: KeyRecord | OwnerRecord) -> bytes:
    """Return the record as it is stored."""
    return orjson.dumps(shown(record))


def key_from(blob: bytes) -> KeyRecord:
    """Return the key that `to_json` wrote, without what a newer one adds. Raises ValueError, KeyError or TypeError."""
    return KeyRecord(**_read(orjson.loads(blob), KeyRecord))


def owner_from(blob: bytes) -> OwnerRecord:
    """Return the owner that `to_json` wrote. Raises as `key_from`."""
    return OwnerRecord(**_read(orjson.loads(blob), OwnerRecord))


_ALWAYS: Final = frozenset({"id", "digest", "kind", "name", "tenant", "state", "revision"})
_TERMS: Final = frozenset({"terms", "per_user", "per_session", "maker_terms"})
_LISTS: Final = frozenset({"surfaces", "tiers", "models"})
NO_NAMES: Final = ("-",)
"""Names of which there is none, in a list that would stand for all if it were empty."""
_SHARED: Final = frozenset({"tenant", "team", "state", "default_surface", "created_by", "kind"})
"""Texts that many records have in common: a worker holds each once."""


def _read(values: dict[str, Any], kind: type[KeyRecord | OwnerRecord]) -> dict[str, Any]:
    present = {name: values[name] for name in kind.__slots__ if name in values}
    for name in present.keys() & _TERMS:
        present[name] = _terms(orjson.dumps(present[name], option=orjson.OPT_SORT_KEYS))
    for name in present.keys() & _LISTS:
        present[name] = tuple(map(intern, present[name]))
    for name in present.keys() & _SHARED:
        present[name] = intern(present[name])
    return present


@lru_cache(1000)
def _terms(blob: bytes) -> Terms:
    """Return terms, the same object for the same text: most keys of a deployment have the terms of others."""
    return Terms.model_validate(orjson.loads(blob))
