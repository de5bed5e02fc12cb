"""Make the caller that a key of the store, a tenant of the config or an identity stands for, with what limits read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from gateway.caller import Caller
from gateway.config.schema import DEFAULT_TENANT
from gateway.parts.access.keys.key_rights import KeyRights
from gateway.parts.access.keys.records import NO_NAMES, KeyRecord, OwnerRecord
from gateway.parts.access.quotas.terms import OwnerKind, Terms


class Limited(NamedTuple):
    """One owner of limits that a caller's requests count against."""

    kind: OwnerKind
    name: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class KeyCaller(Caller):
    """The caller that a record stands for."""

    record: KeyRecord | None = None
    limited: tuple[Limited, ...] = ()
    """The key, its team, its tenant and the identity that made it for itself, those of them that have terms."""
    per_user: tuple[Limited, ...] = ()
    """Terms of each end user of the key, of its team and of its tenant, by who has them; empty where there are none."""
    per_session: tuple[Limited, ...] = ()


def team_of(tenant: str, team: str) -> str:
    """Return the name of a team of a tenant as an owner: two tenants may call theirs the same."""
    return team if tenant == DEFAULT_TENANT else f"{tenant}/{team}"


def caller_of(
    record: KeyRecord, team: OwnerRecord | None = None, tenant: OwnerRecord | None = None, *, own: bool = True
) -> KeyCaller:
    """Return the caller of a key with the terms of all its owners; `team` and `tenant` are None for no terms.

    A team of one name counts separately in each tenant, unless `own` is false: then it is one team of several tenants,
    as the config can have them.

    Surfaces and tiers are those that the key, its team and its tenant all allow now, not when the key was made.
    """
    owners: list[tuple[OwnerKind, str, KeyRecord | OwnerRecord]] = [("key", record.id, record)]
    for owner in (team, tenant):
        if owner is None:
            continue
        is_team = owner.kind == "team" and own
        owners.append((owner.kind, team_of(record.tenant, record.team) if is_team else owner.name, owner))
        if owner.surfaces or owner.tiers:
            surfaces, tiers = _both(record.surfaces, owner.surfaces), _both(record.tiers, owner.tiers)
            record = replace(record, surfaces=surfaces, tiers=tiers)
    limited = tuple(Limited(kind, name, owner.terms) for kind, name, owner in owners if owner.terms)
    if record.maker_terms:
        limited += (Limited("key", record.maker, record.maker_terms),)
    per_user = tuple(Limited(kind, name, owner.per_user) for kind, name, owner in owners if owner.per_user)
    per_session = tuple(Limited(kind, name, owner.per_session) for kind, name, owner in owners if owner.per_session)
    is_limited = bool(limited or per_user or per_session)
    return KeyCaller(
        record.tenant, record.team, record.id, KeyRights(record), is_limited, record, limited, per_user, per_session
    )


def _both(own: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that both lists have, of which an empty one has all; NO_NAMES for none."""
    if not own or not allowed:
        return own or allowed
    return tuple(name for name in own if name in allowed) or NO_NAMES
