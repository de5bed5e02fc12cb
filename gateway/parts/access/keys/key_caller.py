"""Make the caller that a key of the store, a tenant of the config or an identity stands for, with what limits read.

Decide what a key opens: surfaces, tiers, and by its `models` the models that may answer its requests.

    the model of a backend    the backends that run this model, on every surface
    tier:NAME                 the backends of this tier, on every surface
    any other name            all backends of the surface that a request with this `model` reaches

On a surface whose backends include a model of that name, an alias opens these backends alone, the narrower of the two.
What a request calls its model does not count, only what would answer it: so no header and no further tier leads
elsewhere. Stored answers of a tier that is not wholly open are not served either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.caller import Caller, OpenModels
from gateway.config.schema import DEFAULT_TENANT
from gateway.errors import Forbidden
from gateway.parts.access.keys.records import NO_NAMES, KeyRecord, OwnerRecord
from gateway.parts.access.quotas.terms import OwnerKind, Terms
from policies.loader import AUTO
from routing.decide import Clamp

if TYPE_CHECKING:
    from gateway.caller import ModelsByTier
    from policies.loader import PolicySet
    from policies.model import Policy

_TIER: Final = "tier:"
_FURTHER: Final = ("models", "fallbacks")
"""Fields by which servers such as OpenRouter and LiteLLM are told to answer by other models than `model`."""


class KeyRights:
    """What one key opens: see `gateway.caller.Rights`."""

    __slots__ = ("_key", "may_try", "some_models")

    def __init__(self, key: KeyRecord) -> None:
        self._key = key
        self.may_try = key.may_try
        self.some_models = bool(key.models)

    def choose(self, policies: PolicySet, name: str, surface: str | None) -> Policy | None:
        """See `Rights`: a key may have a default surface, for `auto` and for names that stand for nothing here."""
        policy, surfaces = policies.resolve(name, surface), self._key.surfaces
        if surface is None and (policy is None or name == AUTO) and (own := self._default(policies)):
            policy = policies.resolve(own)
        if policy is not None and surfaces and policy.surface not in surfaces:
            message = f"This key may not use surface {policy.surface!r}; it may use {', '.join(surfaces)}."
            param = "model" if surface is None else "x-tierline-surface"
            raise Forbidden(message, code="model_not_allowed", param=param)
        return policy

    def opens(self, policy: Policy, policies: PolicySet, ladder: ModelsByTier) -> bool:
        """See `Rights`."""
        if self._key.surfaces and policy.surface not in self._key.surfaces:
            return False
        models = self.open_models(policy, policies, ladder)
        return models is None or bool(models.tiers)

    def open_models(self, policy: Policy, policies: PolicySet, ladder: ModelsByTier) -> OpenModels | None:
        """See `Rights`."""
        names = self._key.models
        if not names or self._leads_to(policy, policies, ladder):
            return None
        opened = {name: frozenset(_opened(names, name, models)) for name, models in ladder.items()}
        partly = frozenset(name for name, models in ladder.items() if set() < opened[name] < models)
        return None if opened == ladder else OpenModels(opened, partly)

    def clamp(self, policy: Policy, least: str | None, most: str | None, models: OpenModels | None) -> Clamp | None:
        """See `Rights`: the first allowed tiers that are neighbours, as what lies between others must not be used."""
        key, tiers = self._key, policy.tiers
        if not key.tiers and models is None:
            return None
        allowed = frozenset(key.tiers or tiers).intersection(tiers if models is None else models.tiers)
        wanted = tiers[tiers.index(least) if least else 0 : tiers.index(most) + 1 if most else None]
        open_to_it = list(takewhile(allowed.__contains__, dropwhile(lambda name: name not in allowed, wanted)))
        if not open_to_it:
            names = [*key.tiers, *(key.models if models is not None else ())]
            message = f"This key may use {', '.join(names)} alone, and surface {policy.surface!r} has none of them"
            limits = " within the tiers that the request allows" if least or most else ""
            raise Forbidden(f"{message}{limits}.", code="model_not_allowed", param="model")
        return Clamp(open_to_it[0], open_to_it[-1])

    def check_fields(self, body: Mapping[str, Any]) -> None:
        """See `Rights`: nobody could say which of the further models answers."""
        if self.some_models:
            for name in _FURTHER:
                if body.get(name):
                    raise self.not_open(f"the field {name!r}, which asks for further models", param=name)

    def check_model(
        self, policy: Policy, policies: PolicySet, ladder: ModelsByTier, *, asked: str, answers: str
    ) -> None:
        """See `Rights`."""
        names, is_surface = self._key.models, policies.resolve(asked) is not None
        if not names or answers in names or (not is_surface and asked in names):
            return
        if not (is_surface and self._leads_to(policy, policies, ladder)):
            raise self.not_open(f"the model {answers!r}")

    def may_call(self, service: str) -> bool:
        """See `Rights`: a key with a list of tiers may call the services in that list alone."""
        return not self._key.tiers or service in self._key.tiers

    def check_service(self, service: str, endpoint: str) -> None:
        """See `Rights`."""
        if not self.may_call(service):
            tiers = ", ".join(self._key.tiers)
            message = f"This key may use {tiers} alone, and {endpoint} is answered by the service {service!r}."
            raise Forbidden(message, code="model_not_allowed", param="model")

    def not_open(self, what: str, param: str = "model") -> Forbidden:
        """See `Rights`."""
        message = f"This key may not use {what}; it may use the models {', '.join(self._key.models)} alone."
        return Forbidden(message, code="model_not_allowed", param=param)

    def _leads_to(self, policy: Policy, policies: PolicySet, ladder: ModelsByTier) -> bool:
        """Return whether one of the key's models is a name of this policy's surface, and none of its backends'."""
        return any(
            self._surface_of(name, policies) == policy.surface
            for name in self._key.models
            if name not in NO_NAMES and not any(name in models for models in ladder.values())
        )

    def _surface_of(self, name: str, policies: PolicySet) -> str:
        """Return the surface that a request with this `model` reaches; '' for none."""
        policy = policies.resolve(name)
        if (policy is None or name == AUTO) and not name.startswith(_TIER) and (own := self._default(policies)):
            return own
        return "" if policy is None else policy.surface

    def _default(self, policies: PolicySet) -> str:
        """Return the surface of requests that name none; '' for the deployment's."""
        key = self._key
        if key.default_surface or not key.surfaces or policies.default.surface in key.surfaces:
            return key.default_surface
        return key.surfaces[0]


def _opened(names: tuple[str, ...], tier: str, models: frozenset[str]) -> Iterator[str]:
    if _TIER + tier in names:
        yield from models
    yield from models.intersection(names)


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
