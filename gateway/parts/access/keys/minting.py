"""Make keys, tell a mistyped one from an unknown one, and hash them as they are stored.

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
from typing import Final
from zlib import crc32

from gateway.config.schema import key_digest

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
    """Return what tells whether two hash keys by the same secret, and nothing else of it."""
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
