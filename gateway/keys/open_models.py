"""Decide what the `models` of a key open: the models that may answer its requests.

    the model of a backend    the backends that run this model, on every surface
    tier:NAME                 the backends of this tier, on every surface
    any other name            all backends of the surface that a request with this `model` reaches

On a surface whose backends include a model of that name, an alias opens these backends alone, the narrower of the two.
What a request calls its model does not count, only what would answer it: so no header and no further tier leads
elsewhere. Stored answers of a tier that is not wholly open are not served either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import Forbidden
from gateway.keys.records import NO_NAMES
from policies.loader import AUTO
from policies.value_type import value_type

if TYPE_CHECKING:
    from gateway.keys.records import KeyRecord
    from policies.loader import PolicySet
    from policies.model import Policy

ModelsByTier = Mapping[str, frozenset[str]]
"""The models of the backends of each tier, by the tier's name."""
_TIER: Final = "tier:"
_FURTHER: Final = ("models", "fallbacks")
"""Fields by which servers such as OpenRouter and LiteLLM are told to answer by other models than `model`."""


@value_type
class OpenModels:
    """The models that may answer a request, for each tier of its policy, of a key that not all of them are open to.

    `partly` are the tiers that are open to some of their models alone.
    """

    by_tier: ModelsByTier
    partly: frozenset[str]

    @property
    def tiers(self) -> tuple[str, ...]:
        """Tiers with a model that may answer."""
        return tuple(name for name, models in self.by_tier.items() if models)

    @property
    def text(self) -> str:
        """What is equal for requests that the same models may answer."""
        return ";".join(f"{name}={','.join(sorted(models))}" for name, models in self.by_tier.items())


def open_models(key: KeyRecord, policy: Policy, policies: PolicySet, ladder: ModelsByTier) -> OpenModels | None:
    """Return the models that may answer a key's requests of a policy; None where all may.

    `ladder` has all models of the policy's tiers.
    """
    if not key.models or leads_to(key, policy, policies, ladder):
        return None
    opened = {name: frozenset(_opened(key.models, name, models)) for name, models in ladder.items()}
    partly = frozenset(name for name, models in ladder.items() if set() < opened[name] < models)
    return None if opened == ladder else OpenModels(opened, partly)


def leads_to(key: KeyRecord, policy: Policy, policies: PolicySet, ladder: ModelsByTier) -> bool:
    """Return whether one of the key's models is a name of this policy's surface, and none of its backends' models."""
    return any(
        _surface_of(key, name, policies) == policy.surface
        for name in key.models
        if name not in NO_NAMES and not any(name in models for models in ladder.values())
    )


def default_of(policies: PolicySet, key: KeyRecord) -> str:
    """Return the surface of a key's requests that name none; '' for the deployment's."""
    if key.default_surface or not key.surfaces or policies.default.surface in key.surfaces:
        return key.default_surface
    return key.surfaces[0]


def check_model(
    key: KeyRecord, policy: Policy, policies: PolicySet, ladder: ModelsByTier, *, asked: str, answers: str
) -> None:
    """Raise Forbidden unless the model of a service may answer a key's request.

    `asked` is how the client names it: a surface, a name that the service's config maps to `answers`, or `answers`.
    """
    is_surface = policies.resolve(asked) is not None
    if answers in key.models or (not is_surface and asked in key.models):
        return
    if not (is_surface and leads_to(key, policy, policies, ladder)):
        raise not_open(key, f"the model {answers!r}")


def check_fields(key: KeyRecord, body: Mapping[str, Any]) -> None:
    """Raise Forbidden for a body that asks a server for further models: nobody could say which of them answers."""
    for name in _FURTHER:
        if body.get(name):
            raise not_open(key, f"the field {name!r}, which asks for further models", param=name)


def further_models(body: Mapping[str, Any]) -> bool:
    """Return whether anything within a body names a model too, or a file that may: as the requests of a batch do."""
    values: list[Any] = [value for name, value in body.items() if name != "model"]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if "model" in value:
                return True
            values += value.values()
        elif isinstance(value, list):
            values += value
    return "input_file_id" in body


def not_open(key: KeyRecord, what: str, param: str = "model") -> Forbidden:
    """Return the error for what a key's models do not open."""
    message = f"This key may not use {what}; it may use the models {', '.join(key.models)} alone."
    return Forbidden(message, code="model_not_allowed", param=param)


def _surface_of(key: KeyRecord, name: str, policies: PolicySet) -> str:
    """Return the surface that a key's request with this `model` reaches; '' for none."""
    policy = policies.resolve(name)
    if (policy is None or name == AUTO) and not name.startswith(_TIER) and (own := default_of(policies, key)):
        return own
    return "" if policy is None else policy.surface


def _opened(names: tuple[str, ...], tier: str, models: frozenset[str]) -> Iterator[str]:
    if _TIER + tier in names:
        yield from models
    yield from models.intersection(names)
