"""Define the config's section `prices`, and fill in what a config leaves open of backends whose models are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from gateway.chat.usage import Price
from gateway.config.backends import PROXIED, BackendConfig, is_hosted_alone, retirement
from gateway.config.environment import Environ
from gateway.config.notations import OptionalPath
from gateway.config.resolver import Resolver
from gateway.config.schema import Deployment
from gateway.config.sections import Sections
from gateway.parts.prices.model_facts import (
    FactsFile,
    HostedModel,
    KnownModels,
    prior_of,
    prompt_lifetimes,
    read_facts,
    with_hosted_tiers,
)
from gateway.parts.prices.steps import SteppedPrice
from policies.errors import KeyPath
from policies.validation import Section

_FACTS: Final = ("price", "max_output", "logprobs", "rename", "omit", "service_tiers")
"""Keys of a backend that are known for some models, and hold unless its config says otherwise."""
_FAR_OFF: Final = 2.0
"""By how much a stated price may differ from what is known of the model."""


class PricesConfig(Section):
    """What models cost, beside what each backend's `price` says."""

    file: OptionalPath = None
    """A file of facts about models that comes before the one that ships with Tierline."""
    unknown: Literal["warn", "refuse"] = "warn"
    """Whether the gateway starts with a backend whose price nobody states."""


class PricesSections(Sections):
    """The config's section `prices`, and the facts about the models of backends."""

    prices: PricesConfig = PricesConfig()

    @classmethod
    def environ(cls, environ: Environ) -> Environ:
        """Return the environment with the hosted tiers of the first provider whose key is in it."""
        return with_hosted_tiers(environ)

    @classmethod
    def resolve(cls, deployment: Deployment, resolver: Resolver) -> Mapping[str, object]:
        """Return the section with an absolute path, and the tiers with what is known of their models."""
        prices = deployment.of(cls).prices
        own = resolver.existing(("prices", "file"), prices.file)
        known = KnownModels(read_facts(own) if own is not None and own.is_file() else None)
        tiers = []
        for i, tier in enumerate(deployment.tiers):
            backends = []
            for j, backend in enumerate(tier.backends):
                path = ("tiers", i, "backends", j)
                update = dict(_known_of(path, backend, known, resolver))
                if prices.unknown == "refuse":
                    _refuse_unknown(path, backend, update.get("price", backend.price), resolver)
                backends.append(backend.model_copy(update=update))
            tiers.append(tier.model_copy(update={"backends": tuple(backends)}))
        return {"tiers": tuple(tiers), "prices": prices.model_copy(update={"file": own})}


def _known_of(
    path: KeyPath, backend: BackendConfig, known: KnownModels, resolver: Resolver
) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a backend that are known and that its config leaves open, with their values."""
    facts, file = known.find(backend.base_url, backend.model) or (None, None)
    if facts is not None:
        yield from ((name, getattr(facts, name)) for name in _FACTS if name not in backend.model_fields_set)
        if backend.context is None:
            yield "context", facts.context
        yield "retires", facts.retires
        yield "prior", prior_of(facts, {**backend.set, **backend.force})
        _warn_of_facts(path, backend, facts, resolver)
    provider = known.provider(backend.base_url)
    yield "provider", provider
    if backend.roles is None:
        yield "roles", known.roles(backend.base_url, backend.model)
    if backend.prompt_lifetime is None:
        yield "prompt_lifetime", prompt_lifetimes().get(provider)
    yield "price_source", _price_source(backend, facts, file)


def _price_source(backend: BackendConfig, facts: HostedModel | None, file: FactsFile | None) -> str:
    """Return who states a backend's price; '' if nobody does. `file` has the facts about its model."""
    if facts is not None and file is not None and "price" not in backend.model_fields_set:
        return "" if facts.price is None else file.name
    if backend.price is None:
        return ""
    free_here = backend.price == SteppedPrice() and backend.is_here and not is_hosted_alone(backend.model)
    return "on this machine" if free_here else "config"


def _refuse_unknown(path: KeyPath, backend: BackendConfig, price: Price | None, resolver: Resolver) -> None:
    """Refuse a backend that would be called and whose price nobody states."""
    if price is None and backend.unconfigured_reason is None:
        here = f" ({PROXIED}; write price: {{}} if nobody pays for it)" if backend.is_here else ""
        message = f"nobody states what it costs{here}, and prices.unknown says refuse; write input and output here"
        resolver.refuse((*path, "price"), message)


def _warn_of_facts(path: KeyPath, backend: BackendConfig, facts: HostedModel, resolver: Resolver) -> None:
    """Warn of a model that is about to be switched off, and of a price that is another model's."""
    if notice := retirement(facts.retires):
        resolver.warn((*path, "model"), f"{backend.model} {notice}; choose another")
    price, known = backend.price, facts.price
    if price is None or known is None or "price" not in backend.model_fields_set:
        return
    for side in ("input", "output"):
        stated, expected = getattr(price, side), getattr(known, side)
        if max(stated, expected) > _FAR_OFF * min(stated, expected):
            message = f"{backend.model} is known to cost ${expected:g} per million tokens of {side}, not ${stated:g}"
            resolver.warn((*path, "price"), f"{message}; leave price out, unless that is your contract")
            return


SECTIONS: Final = PricesSections
