"""Read the dated file of what is known about hosted models: prices, context lengths, and how their APIs differ.

    {"dated": "2026-11-22", "source": "...", "hosts": {"api.openai.com": "openai"},
     "models": {"openai": {"gpt-5.4": {"context": 1050000, "price": {"input": 2.5, "output": 15, ...},
                                       "rename": {"max_tokens": "max_completion_tokens"}}}}}

A model is looked up under the provider of its backend's host, so that a price is never applied to a server of one's own
that serves a model of the same name. What a config states for a backend comes first, then the user's own file, then the
one that ships. A model that neither file has is unknown.

Read the file of providers and local servers: whose key is in which variable, at which URL, with which models.

`tierline init` proposes a ladder from it, and the default config's hosted tiers are of the first provider with a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import Field

from gateway.config.environment import Environ
from gateway.parts.prices.steps import SteppedPrice
from policies.quantities import read_duration
from policies.validation import Seconds, Section, Whole, validate
from policies.yaml_source import read_yaml
from routing.features import SERVICE_TIERS, ServiceTier
from routing.load.latency import Prior

SHIPPED_FACTS: Final = Path(__file__).parent / "model_facts.json"
_LATENCY_PRIORS: Final = Path(__file__).parent / "latency_priors.json"
_PROMPT_LIFETIMES: Final = Path(__file__).parent / "prompt_lifetimes.json"


class HostedModel(Section):
    """What is known about one model of one provider. None and empty mean that nothing is known, or nothing special."""

    price: SteppedPrice | None = None
    context: Annotated[Whole, Field(ge=1)] | None = None
    """Context length in tokens, prompt and reply together."""
    max_output: Annotated[Whole, Field(ge=1)] | None = None
    """Most tokens of one answer; it refuses requests that allow more."""
    logprobs: bool = True
    """Whether it returns token log-probabilities."""
    rename: Mapping[str, str] = {}
    """Request fields that it takes under another name."""
    omit: tuple[str, ...] = ()
    """Request fields that it refuses or ignores; `messages.NAME` for members of messages."""
    roles: Literal["any", "one_system"] | None = None
    """Whether it takes the roles `developer` and `system` anywhere; None if it does what its provider's others do."""
    retires: date | None = None
    """The day on which its provider switches it off, where that is announced."""
    ttft: Seconds | None = None
    """Median time to the first token of a short prompt, without reasoning; None: that of models of its price."""
    tpot: Seconds | None = None
    """Mean time per output token after the first, likewise."""

    @property
    def service_tiers(self) -> tuple[ServiceTier, ...] | None:
        """Service tiers that it has: those with a price, and any that are not known. None if none has a price."""
        if self.price is None or not self.price.service_tiers:
            return None
        priced = [name for name in SERVICE_TIERS if name in self.price.service_tiers]
        return (*priced, "other")


@cache
def _priors() -> Mapping[str, Any]:
    return orjson.loads(_LATENCY_PRIORS.read_bytes())  # type: ignore[no-any-return]


def prior_of(facts: HostedModel, set_fields: Mapping[str, Any]) -> Prior | None:
    """Return what is expected of a model that was never measured, with the request fields that the config sets.

    The figures are the model's own where the facts have them, else those of its class by the price of its output;
    None where they have neither. What it thinks before its first token is added: by the effort that is asked for.
    """
    known = _priors()
    price = None if facts.price is None else facts.price.output
    classes = known["classes"] if price is not None else ()
    of_class: Mapping[str, Any] = next(
        (class_ for class_ in classes if class_["output_usd_to"] is None or price <= class_["output_usd_to"]), {}
    )
    ttft, tpot = facts.ttft or of_class.get("ttft"), facts.tpot or of_class.get("tpot")
    if ttft is None or tpot is None:
        return None
    ttft += _thinking_s(known, facts, set_fields, tpot)
    return Prior(ttft, tpot * known["tokens_out"], 1 / known["prefill_tokens_per_s"], known["spread"])


def _thinking_s(known: Mapping[str, Any], facts: HostedModel, fields: Mapping[str, Any], tpot_s: float) -> float:
    """Return the median seconds of reasoning before the first token: by a budget of tokens, half of which is used."""
    reasoning, output, thinking = (fields.get(name) or {} for name in ("reasoning", "output_config", "thinking"))
    effort = fields.get("reasoning_effort") or reasoning.get("effort") or output.get("effort")
    if effort is None and isinstance(budget := thinking.get("budget_tokens"), int):
        return min(budget * tpot_s / 2, float(known["thinking"]["max"]))
    if effort is None and "temperature" in facts.omit:  # it takes no sampling parameters, as it always reasons
        effort = known["thinking_always"]
    return float(known["thinking"].get(effort, 0.0))


class FactsFile(Section):
    """One file of facts: its date, its source, the provider of each host, and the models by provider and name.

    A host is a name, for those below it too, or a pattern of all of it with `*`, such as a region's.
    """

    dated: date
    source: str = ""
    hosts: Mapping[str, str] = {}
    models: Mapping[str, Mapping[str, HostedModel]] = {}

    @property
    def name(self) -> str:
        """The file in words: its date and its source."""
        return f"file of {self.dated} ({self.source or 'your own'})"

    def provider(self, base_url: str) -> str | None:
        """Return the provider at a URL, by its host or a domain above it; None if it is none of the known."""
        host = urlsplit(base_url).hostname or ""
        for pattern, provider in self.hosts.items():
            if "*" in pattern and fnmatchcase(host, pattern):
                return provider
        while host:
            if host in self.hosts:
                return self.hosts[host]
            host = host.partition(".")[2]
        return None

    def find(self, base_url: str, model: str) -> HostedModel | None:
        """Return what is known about a model at a URL, None if nothing is."""
        return self.models.get(self.provider(base_url) or "", {}).get(model)


@cache
def shipped_facts() -> FactsFile:
    """Return the facts that ship with Tierline."""
    return FactsFile.model_validate(orjson.loads(SHIPPED_FACTS.read_bytes()))


@cache
def prompt_lifetimes() -> Mapping[str, float]:
    """Return by provider the shortest time that it says it keeps a prompt after its last use, in seconds."""
    return {name: read_duration(text) for name, text in orjson.loads(_PROMPT_LIFETIMES.read_bytes()).items()}


def read_facts(file: Path) -> FactsFile:
    """Return the facts in a user's own file, JSON or YAML. Raises ConfigError."""
    return validate(FactsFile, read_yaml(file))


_ANY_ROLES: Final = frozenset({"openai", "azure", "anthropic"})
"""Providers whose APIs take the roles `developer` and `system` anywhere."""


class KnownModels:
    """The facts of a deployment: the user's own file, if any, over the shipped one."""

    def __init__(self, own: FactsFile | None = None) -> None:
        self.files = (shipped_facts(),) if own is None else (own, shipped_facts())

    def find(self, base_url: str, model: str) -> tuple[HostedModel, FactsFile] | None:
        """Return what is known about a model, and in which file that is; None if nothing is known."""
        hosts = {host: provider for file in reversed(self.files) for host, provider in file.hosts.items()}
        for file in self.files:
            facts = file.model_copy(update={"hosts": hosts}).find(base_url, model)
            if facts is not None:
                return facts, file
        return None

    def provider(self, base_url: str) -> str:
        """Return the provider at a URL; '' if it is none of the known."""
        return next((found for file in self.files if (found := file.provider(base_url))), "")

    def roles(self, base_url: str, model: str) -> Literal["any", "one_system"]:
        """Return which roles a model takes, by its facts, else its provider: for most, one system message."""
        facts = self.find(base_url, model)
        if facts is not None and facts[0].roles is not None:
            return facts[0].roles
        return "any" if self.provider(base_url) in _ANY_ROLES else "one_system"


_FILE: Final = Path(__file__).parent / "providers.json"


class Provider(Section):
    """A provider of hosted models, and which of them to propose."""

    name: str
    key_env: str
    or_env: tuple[str, ...] = ()
    """Further variables, any of which is as good as the key's."""
    auth: str = ""
    """The cloud whose identity stands in place of a key, which the variables above then say is there."""
    base_url: str
    """'' where each customer has a URL of their own, which `url_env` must then hold. `{NAME}` is a variable's value."""
    url_env: str = ""
    path: str = ""
    """What follows the URL in `url_env`."""
    kind: str = "openai"
    small: str
    large: str
    capabilities: tuple[str, ...] = ("tools", "vision", "json")
    logprobs: bool = True
    """Whether its API returns log-probabilities of tokens at all; what is known of a model counts besides."""
    unasked: bool = False
    """Whether its models can all that the default config's hosted tiers say, which then are theirs by a key alone."""
    deployments: bool = False
    """Whether customers choose which models are there, and their names."""

    def url(self, environ: Environ) -> str:
        """Return the base URL: that of the environment, if there is one; '' if nobody knows it."""
        own = environ.get(self.url_env, "").rstrip("/") if self.url_env else ""
        try:
            return own + self.path if own else self.base_url.format_map(environ)
        except KeyError:
            return ""


class ProvidersFile(Section):
    """The file: providers in the order in which they are proposed, and servers on this machine by name."""

    providers: tuple[Provider, ...]
    servers: Mapping[str, str]
    rungs: Mapping[str, float]
    """What a prompt of each hosted rung should cost about, in US dollars per million tokens."""
    typical: Mapping[str, tuple[int, int]]
    """Tokens of a typical prompt and answer of each shipped surface: assumptions, by which ladders are compared."""


@cache
def known_providers() -> ProvidersFile:
    """Return the shipped file."""
    return ProvidersFile.model_validate(orjson.loads(_FILE.read_bytes()))


def offered(environ: Environ) -> Iterator[tuple[Provider, str]]:
    """Yield each provider whose key, or identity, the environment holds, with its base URL."""
    for provider in known_providers().providers:
        names = (provider.key_env, *provider.or_env)
        if any(environ.get(name) for name in names) and (url := provider.url(environ)):
            yield provider, url


def with_hosted_tiers(environ: Environ) -> Environ:
    """Return the environment with the variables of the default config's hosted tiers, filled in by the first key that
    is there of a provider which can be them. Where OpenAI's key or URL is set, the first of the two stays as it is.

    The second one is filled in where both models are the file's own, or the environment names its model.
    """
    own, known = dict(environ), not environ.get("TIERLINE_HOSTED_MODEL")
    openai = known_providers().providers[0]
    url, large = openai.url(environ), openai.large
    if environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL"):
        known = known and not environ.get("OPENAI_BASE_URL")
    else:
        offer = next(((provider, url) for provider, url in offered(environ) if provider.unasked), None)
        if offer is None:
            return environ
        provider, url = offer
        own |= {
            "OPENAI_BASE_URL": url,
            "TIERLINE_HOSTED_KIND": provider.kind,
            "TIERLINE_HOSTED_KEY_ENV": provider.key_env,
            "TIERLINE_HOSTED_MODEL": environ.get("TIERLINE_HOSTED_MODEL") or provider.small,
        }
        known, large = known and not provider.deployments, provider.large
    if known or environ.get("TIERLINE_LARGE_MODEL"):
        own["TIERLINE_LARGE_BASE_URL"] = environ.get("TIERLINE_LARGE_BASE_URL") or url
        own["TIERLINE_LARGE_MODEL"] = environ.get("TIERLINE_LARGE_MODEL") or large
        if not environ.get("TIERLINE_LARGE_KEY") and own["TIERLINE_LARGE_BASE_URL"] == url:  # no other server gets it
            own["TIERLINE_LARGE_KEY_ENV"] = own.get("TIERLINE_HOSTED_KEY_ENV") or "OPENAI_API_KEY"
    return own
