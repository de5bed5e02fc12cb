"""Make, rotate and change keys for a person: by their role and their team's rules, then in the registry.

The console and the admin API call these, so that a rule holds in both. Each raises NotAllowed for what the person may
not do, and what the registry raises.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any, Final

from gateway.config.schema import DEFAULT_TENANT
from gateway.parts.access.config import NAME
from gateway.parts.access.keys.records import LATEST, KeyRecord, OwnerRecord, digest_of, new_id, new_key, secret_of
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused, Why
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.keys.self_service import NotAllowed, allowed_key, may_with

_OWN: Final = frozenset({"id", "digest", "created", "created_by", "replaces", "revision"})
"""Fields that no change of a key is about."""


async def make_key(registry: KeyRegistry, person: Person, wanted: KeyRecord, why: Why) -> tuple[KeyRecord, str]:
    """Store a new key like `wanted`, whose id and digest do not count; return its record, and the key itself."""
    check_key(wanted)
    key, digest = await _new_key(registry)
    wanted = replace(wanted, id=new_id(), digest=digest)
    record = allowed_key(person, wanted, await _team_of(registry, wanted), time.time())
    return await registry.create(record, why), key


async def rotate_key(
    registry: KeyRegistry, person: Person, before: KeyRecord, grace_s: float, why: Why
) -> tuple[KeyRecord, str]:
    """Give a key a new secret; the old one is valid for `grace_s` more. Return the new record, and the key itself."""
    _permit(person, "keys.rotate", before)
    after = allowed_key(person, replace(before, replaces=before.digest), await _team_of(registry, before), time.time())
    key, digest = await _new_key(registry)
    # With what its team allows, in one change: where a second one failed, the new secret would be lost.
    limits = {"expires": after.expires, "surfaces": after.surfaces, "tiers": after.tiers}
    return await registry.rotate(before, digest, grace_s, why, **limits), key


async def change_key(registry: KeyRegistry, person: Person, before: KeyRecord, after: KeyRecord, why: Why) -> KeyRecord:
    """Store the fields in which a key is to differ; return the key as it is then."""
    _permit(person, "keys.change", before)
    check_key(after)
    if replace(after, state=before.state) != before:
        # A change of its state alone is let through, also of a key that is not within what its team allows by now.
        kept = replace(after, replaces=after.replaces or after.digest)
        after = replace(
            allowed_key(person, kept, await _team_of(registry, after), time.time()), replaces=before.replaces
        )
    names = [name for name in KeyRecord.__slots__ if name not in _OWN]
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
    changed: dict[str, Any] = {name: new for name, (old, new) in pairs.items() if old != new}
    if set(changed) == {"state"}:  # a key is revoked although it is rotated or changed at this moment
        return await registry.set_state(before, after.state, why)
    return await registry.update(before, why, **changed) if changed else before


def check_key(key: KeyRecord) -> None:
    """Raise KeysRefused if the name of the key's team or tenant is not valid, or its end is no date."""
    check_name("team", key.team)
    check_name("tenant", key.tenant or "?")
    if not 0 <= (key.expires or 0) <= LATEST:
        raise KeysRefused("its end is no date before the year 10000; leave it out for a key that does not end")


def check_owner(kind: str, name: str) -> None:
    """Raise KeysRefused unless this is a valid name of a team, also `TENANT/TEAM`, or of a tenant."""
    tenant, slash, team = name.rpartition("/")
    if slash and (kind != "team" or not tenant or tenant == DEFAULT_TENANT):
        raise KeysRefused(f"{name!r} is no team; write TENANT/TEAM, and only TEAM for one of tenant {DEFAULT_TENANT!r}")
    check_name("tenant", tenant)
    check_name(kind, team or "?")


def check_name(what: str, name: str) -> None:
    """Raise KeysRefused for a text that is no name of a team or a tenant; '' is one of neither."""
    if name and not re.fullmatch(NAME, name):
        raise KeysRefused(f"{name!r} is no name of a {what}: up to 64 of a-z, 0-9 and _.-, a letter or digit first")


def _permit(person: Person, action: str, key: KeyRecord) -> None:
    if not may_with(person, action, key):
        of = f"team {key.team}" if key.team else "no team"
        raise NotAllowed(f"You may not do this to keys of {of}. An admin can give you a role.")


async def _team_of(registry: KeyRegistry, key: KeyRecord) -> OwnerRecord | None:
    if not key.team:
        return None
    return await registry.owner("team", f"{key.tenant}/{key.team}") or await registry.owner("team", key.team)


async def _new_key(registry: KeyRegistry) -> tuple[str, str]:
    """Return a new key and its digest. Raises KeysRefused where this process hashes by another secret than others."""
    key, secret = new_key(), secret_of()
    await registry.check_secret(secret)
    return key, digest_of(key.encode(), secret).hex()
