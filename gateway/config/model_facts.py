"""Read the dated file of what is known about hosted models: prices, context lengths, and how their APIs differ.

    {"dated": "2026-11-22", "source": "...", "hosts": {"api.openai.com": "openai"},
     "models": {"openai": {"gpt-5.4": {"context": 1050000, "price": {"input": 2.5, "output": 15, ...},
                                       "rename": {"max_tokens": "max_completion_tokens"}}}}}

A model is looked up under the provider of its backend's host, so that a price is never applied to a server of one's own
that serves a model of the same name. What a config states for a backend comes first, then the user's own file, then the
one that ships. A model that neither file has is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import Field

from gateway.config.prices import Price
from policies.quantities import read_duration
from policies.validation import Seconds, Section, Whole, validate
from policies.yaml_source import read_yaml
from routing.features import SERVICE_TIERS, ServiceTier
from routing.load.latency import Prior

TELL_BEFORE: Final = timedelta(days=90)
"""How long before a model is switched off that is told."""
SHIPPED_FACTS: Final = Path(__file__).parent / "model_facts.json"
_LATENCY_PRIORS: Final = Path(__file__).parent / "latency_priors.json"
_PROMPT_LIFETIMES: Final = Path(__file__).parent / "prompt_lifetimes.json"


class HostedModel(Section):
    """What is known about one model of one provider. None and empty mean that nothing is known, or nothing special."""

    price: Price | None = None
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


_MAKERS_ALONE: Final = re.compile(
    r"(?:.*[/.])?(?:gpt-[3-9]|chatgpt-|o[1-9](?![\w.])|text-embedding-(?:3|ada)|claude-|gemini-(?!gemma)|grok-[3-9]|grok-code"
    r"|(?:mistral|codestral|devstral|magistral|ministral|pixtral|voxtral)-(?:[\w-]*-)?latest$|mistral-(?:medium|large)-"
    r"|deepseek-(?:chat|reasoner)$)"
)


PROXIED: Final = "a hosted model behind an address of this machine, so a proxy's"
"""Why a backend on this machine is not taken to be free."""


def is_hosted_alone(model: str) -> bool:
    """Return whether a model is served by its maker and its maker's partners alone, by its name, prefixes left out.

    A server on one's own machine that offers one is a proxy, and somebody pays for its calls.
    """
    return _MAKERS_ALONE.match(model.lower()) is not None


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


def retirement(retires: date | None, within: timedelta = TELL_BEFORE) -> str:
    """Return what there is to tell of a model that is switched off on that day; '' while it is further off."""
    today = datetime.now(UTC).date()
    if retires is None or retires - today > within:
        return ""
    days = (retires - today).days
    if days < 0:
        return f"has been switched off since {retires}"
    return f"is switched off on {retires}, {f'in {days} days' if days > 1 else 'tomorrow' if days else 'today'}"


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


_ABOVE: Final = re.compile(r"_above_(\d+)k_tokens")
_ANY_ROLES: Final = frozenset({"openai", "azure", "anthropic"})
"""Providers whose APIs take the roles `developer` and `system` anywhere."""
_OPENAIS: Final = frozenset({"openai", "azure"})
_PLATFORMS: Final = ("bedrock", "vertex_ai")
_OPENAIS_ON_BEDROCK: Final = re.compile(r"\bopenai\.gpt-\d")
_SAMPLING: Final = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs",
)  # fmt: skip
_OF_REASONING: Final = {"rename": {"max_tokens": "max_completion_tokens"}}
_OF_REASONING_ALWAYS: Final = {**_OF_REASONING, "omit": _SAMPLING, "logprobs": False}
_NEVER_REASON: Final = re.compile(r"^(?:[\w-]+/|ft:)?gpt-(?:[34]|audio)")
"""OpenAI's models that have no reasoning to set. The map leaves its flag out for some that have."""
_OF_NO_REASONING: Final = {"omit": ("reasoning_effort", "verbosity")}
_NO_VERBOSITY: Final = re.compile(r"^(?:[\w-]+/|ft:)?o\d")
_UNKNOWN_MEMBERS: Final = ("messages.name", "messages.reasoning_content", "messages.reasoning_details")
_OF_PROVIDER: Final[Mapping[str, Mapping[str, Any]]] = {
    "groq": {"omit": ("logit_bias", "logprobs", "top_logprobs", "n", *_UNKNOWN_MEMBERS), "logprobs": False},
    "mistral": {
        "rename": {"max_completion_tokens": "max_tokens", "seed": "random_seed"},
        "omit": (
            "logit_bias", "safety_identifier", "service_tier", "store", "stream_options", "user", "verbosity",
            *_UNKNOWN_MEMBERS,
        ),
    },
}  # fmt: skip
"""What the APIs of some providers take otherwise, whatever the model: they refuse fields that they do not know."""
_TIERS: Final = ("flex", "priority")
_OF_TIER: Final = re.compile(f"_(?:{'|'.join(_TIERS)})$")
_OF_PRICE: Final = re.compile("cost|pric")
_RANGES: Final = "tiered_pricing"
_RATES: Final = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "cache_write_1h": "cache_creation_input_token_cost_above_1hr",
}
"""Rates as `TokenRates` names them, and as LiteLLM does."""
_SNAPSHOT_OF: Final = re.compile(r"-(?:\d{4}-\d\d-\d\d|\d{8})$")
"""The end of a snapshot's name."""
_KINDS: Final = frozenset({"chat", "responses", "completion", "embedding"})


def facts_from_price_map(price_map: Mapping[str, Any], hosts: Mapping[str, str], dated: date, source: str) -> FactsFile:
    """Return the facts in LiteLLM's `model_prices_and_context_window.json`, of the providers in `hosts`.

    Of prices, rates of tokens are read: of long prompts too, also those of `tiered_pricing`, which count before others.

    What OpenAI's reasoning models take otherwise follows from its flags: `max_completion_tokens` in place of
    `max_tokens`, and no sampling parameters or log-probabilities where reasoning cannot be turned off. Its models that
    do not reason take no effort and no verbosity. Groq's and Mistral's APIs refuse fields that they do not know, of
    messages too. A name without a date of its own is switched off with the last of its snapshots, if all have one.
    Raises ValueError for another format.
    """
    providers = set(hosts.values())
    models: dict[str, dict[str, Any]] = {name: {} for name in sorted(providers)}
    for provider, model, entry in _entries(price_map, providers):
        price = _price(entry)
        facts: dict[str, Any] = {**_OF_PROVIDER.get(provider, {}), **({} if price is None else {"price": price})}
        if (context := entry.get("max_input_tokens")) and entry.get("mode") != "embedding":
            facts["context"] = context
        if (most := entry.get("max_output_tokens")) and entry.get("mode") != "embedding":
            facts["max_output"] = most
        if (provider in _OPENAIS or _OPENAIS_ON_BEDROCK.search(model)) and entry.get("supports_reasoning"):
            facts |= _OF_REASONING if entry.get("supports_none_reasoning_effort") else _OF_REASONING_ALWAYS
            if _NO_VERBOSITY.match(model):
                facts["omit"] = (*_SAMPLING, "verbosity")
        elif provider in _OPENAIS and entry.get("mode") != "embedding" and _NEVER_REASON.match(model):
            facts |= _OF_NO_REASONING
        if facts:
            models[provider][model] = facts | ({"retires": day} if (day := entry.get("deprecation_date")) else {})
    for by_name in models.values():
        _retire_with_snapshots(by_name)
    if not any(models.values()):
        raise ValueError("it has no model of a known provider, so this is not LiteLLM's map of prices")
    return FactsFile.model_validate(
        {"dated": dated, "source": source, "hosts": dict(hosts), "models": {k: v for k, v in models.items() if v}}
    )


def unread_rates(price_map: Mapping[str, Any], hosts: Mapping[str, str]) -> Counter[str]:
    """Return the fields of LiteLLM's map that state prices that are not read, with the number of models that have them.

    Those of long prompts count as the same without their length. Raises ValueError for another format.
    """
    unread: Counter[str] = Counter()
    for _, _, entry in _entries(price_map, set(hosts.values())):
        names = {name for rates in (entry, *(_ranges(entry) or ())) for name, value in rates.items() if value}
        plain = {_ABOVE.sub("", name) for name in names - {_RANGES} if _OF_PRICE.search(name)}
        unread.update(name for name in plain if _OF_TIER.sub("", name) not in _RATES.values())
    return unread


def _entries(price_map: Mapping[str, Any], providers: Container[str]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the provider, the model and the entry of each model of these providers whose calls are priced by tokens."""
    for name, entry in price_map.items():
        if not isinstance(entry, Mapping):
            raise ValueError(f"{name!r} is no object, so this is not LiteLLM's map of prices")
        provider, model = _named(name, str(entry.get("litellm_provider")))
        if provider in providers and entry.get("mode") in _KINDS:
            yield provider, model, entry


def _named(name: str, provider: str) -> tuple[str, str]:
    """Return the provider and the model of an entry, as requests name it; ('', '') for prices of commitments.

    The map has a provider for each of Bedrock's APIs, and for each maker on Vertex.
    """
    platform = next((platform for platform in _PLATFORMS if provider.startswith(platform)), provider)
    model = name.removeprefix(f"{provider}/").removeprefix(f"{platform}/")
    if platform == "bedrock" and "/" in model:
        return "", ""
    return platform, f"google/{model}" if platform == "vertex_ai" and model.startswith("gemini-") else model


def _retire_with_snapshots(by_name: dict[str, dict[str, Any]]) -> None:
    days: dict[str, list[str]] = {}
    for name, facts in by_name.items():
        if (alias := _SNAPSHOT_OF.sub("", name)) != name:
            days.setdefault(alias, []).append(facts.get("retires", ""))
    for alias, of_snapshots in days.items():
        if alias in by_name and all(of_snapshots):
            by_name[alias].setdefault("retires", max(of_snapshots))


def _price(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    ranges = _ranges(entry)
    if ranges is None:
        return None
    rates = _rates({**entry, **ranges[0]} if ranges and not ranges[0]["range"][0] else entry, "")
    if "input" not in rates or (entry.get("mode") != "embedding" and not rates.get("output")):
        return None  # an answer that nobody states a price for is not free
    if not any(rates.values()):  # 0 for a hosted model means a trial, or that nobody knows
        return None
    if ranges:
        steps = [(step["range"][0], _rates({**entry, **step}, "")) for step in ranges if step["range"][0]]
        return rates | _steps(steps)
    over = sorted({int(match[1]) for key in entry if (match := _ABOVE.search(key))})
    rates |= _long(entry, over, "")
    tiers = {}
    for tier in _TIERS:
        if own := _rates(entry, f"_{tier}") | _long(entry, over, f"_{tier}"):
            tiers[tier] = own
    return rates | ({"service_tiers": tiers} if tiers else {})


def _ranges(entry: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Return the ranges of prompt tokens with rates of their own, shortest first; None if they are not understood."""
    ranges = entry.get(_RANGES) or []
    try:
        return sorted(ranges, key=lambda step: int(step["range"][0]))
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def _long(entry: Mapping[str, Any], thousands: Iterable[int], suffix: str) -> dict[str, Any]:
    return _steps((over * 1000, _rates(entry, f"_above_{over}k_tokens{suffix}")) for over in thousands)


def _steps(found: Iterable[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Return the member `long` of a price, whose steps may leave rates out; {} without any step."""
    steps = [{"over": over, **rates} for over, rates in found if rates]
    return {"long": steps} if steps else {}


def _rates(entry: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    """Return the rates with this suffix in US dollars per million tokens, those that are there."""
    rates = {name: entry.get(f"{key}{suffix}") for name, key in _RATES.items()}
    return {name: round(value * 1e6, 6) for name, value in rates.items() if value is not None}
