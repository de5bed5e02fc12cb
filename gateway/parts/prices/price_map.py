"""Read LiteLLM's map of prices as a file of facts, for `tierline prices import`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import date
from typing import Any, Final

from gateway.parts.prices.model_facts import FactsFile

_ABOVE: Final = re.compile(r"_above_(\d+)k_tokens")
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
