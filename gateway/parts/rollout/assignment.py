"""Decide which requests of a surface get the candidate policy that is tried on a share of them.

The sticky unit (a conversation, with all others of its session; an API key; or a tenant) is hashed with the candidate's
version to a number of 64 bits; the units whose number is below the share of all numbers get the candidate. So a unit
stays with its policy, who is in at 1% is in at 5% too, and another candidate gets other units.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

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


def assign(rolling: RollingPolicy, tenant: str, bearer: bytes, session: str) -> Assignment:
    """Return what a request of the candidate's surface gets. `bearer` is its API key, `session` its session's name."""
    if rolling.sticky == "conversation":
        unit = b"session:" + session.encode()
    elif rolling.sticky == "key" and bearer:
        unit = b"key:" + key_digest(bearer)
    else:
        unit = b"tenant:" + tenant.encode()
    number = int.from_bytes(blake2b(unit, digest_size=8, key=rolling.salt.encode()[:64]).digest())
    return Assignment(CANDIDATE if number < rolling.share * _NUMBERS else CONTROL, f"{number:016x}")
