"""Propose a ladder of up to three rungs, from the keys in the environment and the servers on this machine.

The rungs are `local` (a server on this machine, else the model that `tierline up` starts), `hosted` (about $0.10 per
million tokens of prompt) and `large` (about $2). Where there are keys of several providers, each hosted rung is of the
one that suits it best, and says why. Servers are asked for their models, all at once, and those that do not answer in
time are left out; a hosted provider that does not answer gets the models of the shipped file.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import httpx2
import orjson

from gateway.config.environment import Environ
from gateway.config.model_facts import HostedModel, retirement, shipped_facts
from gateway.config.providers import Provider, known_providers, offered

NEAR_S: Final = 0.5
"""Longest wait for a server on this machine, in seconds."""
FAR_S: Final = 4.0
"""Longest wait for a provider's list of models, in seconds."""
_TOO_FAR: Final = 4.0
"""By how much the price of a listed model may differ from the rung's."""
_NO_CHAT: Final = ("embed", "whisper", "tts", "rerank", "moderation", "guard", "audio", "image")
"""Parts of the names of models that answer no chat."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A server or a provider that was looked at. `models` is None if it did not answer."""

    name: str
    url: str
    models: tuple[str, ...] | None
    provider: Provider | None = None


@dataclass(frozen=True, slots=True)
class Rung:
    """One tier of the proposal: a model of a place, with what the shipped facts know of it."""

    tier: str
    model: str
    place: ModelServer
    facts: HostedModel | None = None
    why: str = ""
    """Why this one, where there was a choice of providers."""

    @property
    def lacks(self) -> int:
        """How many of the capabilities that most providers' models have those of its provider lack."""
        own = () if self.place.provider is None else self.place.provider.capabilities
        return len(Provider.model_fields["capabilities"].default) - len(own)

    @property
    def logprobs(self) -> bool:
        """Whether its answers come with log-probabilities, as far as is known."""
        provider = self.place.provider
        return (provider is None or provider.logprobs) and (self.facts is None or self.facts.logprobs)

    def usd(self, tokens_in: int, tokens_out: int) -> float | None:
        """Return the cost of one call in US dollars; None if its price is not known."""
        if self.place.provider is None:
            return 0.0
        price = None if self.facts is None else self.facts.price
        return None if price is None else (tokens_in * price.input + tokens_out * price.output) / 1e6


async def look(environ: Environ, servers: Mapping[str, str]) -> list[ModelServer]:
    """Return the servers that answer and the providers with a key, each with its list of models."""
    timeout = httpx2.Timeout(FAR_S)
    async with httpx2.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=False) as client:
        near = [_listed(client, name, url, None, "", NEAR_S) for name, url in servers.items()]
        found = list(offered(environ))
        far = [_listed(client, one.name, url, one, environ[one.key_env], FAR_S) for one, url in found if not one.auth]
        places = await asyncio.gather(*near, *far)
    places += [ModelServer(one.name, url, None, one) for one, url in found if one.auth]
    return [place for place in places if place.provider is not None or place.models]


async def _listed(
    client: httpx2.AsyncClient, name: str, url: str, provider: Provider | None, key: str, within_s: float
) -> ModelServer:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if provider is not None and provider.kind == "anthropic":
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        url = url if url.endswith("/v1") else f"{url}/v1"
    try:
        async with asyncio.timeout(within_s):
            reply = await client.get(f"{url}/models", headers=headers)
        listed = orjson.loads(reply.content)["data"] if reply.status_code == 200 else None
        models = None if listed is None else tuple(str(one["id"]).removeprefix("models/") for one in listed)
    except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, UnicodeError, ValueError, LookupError, TypeError):
        models = None
    return ModelServer(name, url, models, provider)


def ladder(places: Sequence[ModelServer]) -> list[Rung]:
    """Return the proposed rungs, cheapest first: at most one on this machine, then a small and a large hosted one."""
    rungs = []
    here = next((place for place in places if place.provider is None), None)
    if here is not None and (names := _chats(here.models or ())):
        rungs.append(Rung("local", names[0], here))
    hosted = _cheapest([*_offers("hosted", "small", places)])
    large = _strongest([*_offers("large", "large", places)], hosted)
    return [*rungs, *(rung for rung in (hosted, large) if rung is not None)]


def _offers(tier: str, size: Literal["small", "large"], places: Sequence[ModelServer]) -> Iterator[Rung]:
    """Yield what each provider has for a rung, in their order."""
    about = known_providers().rungs[size]
    for place in places:
        if place.provider is not None and (model := _chosen(place, getattr(place.provider, size), about)):
            yield Rung(tier, model, place, shipped_facts().find(place.url, model))


def _cheapest(offers: Sequence[Rung]) -> Rung | None:
    """Return the cheapest of those that can most; of such as cost the same, one whose answers tell how sure it is."""

    def cost(rung: Rung) -> float:
        usd = rung.usd(*known_providers().typical["chat"])
        return math.inf if usd is None else round(usd * 1000, 2)

    found = min(offers, key=lambda one: (one.lacks, cost(one), not one.logprobs), default=None)
    if found is None or len(offers) == 1:
        return found
    others = ", ".join(f"{one.model} ${cost(one):.2f}" for one in offers if one is not found)
    signal = "with log-probabilities, " if found.logprobs and not all(one.logprobs for one in offers) else ""
    blind = " (not all see pictures)" if found.lacks < max(one.lacks for one in offers) else ""
    return replace(found, why=f"{signal}${cost(found):.2f} per 1,000 chats; others: {others}{blind}")


def _strongest(offers: Sequence[Rung], small: Rung | None) -> Rung | None:
    """Return the one of those that can most whose price is nearest the rung's; if need be, of another provider.

    Prices stand for strength, which no fact states.
    """
    about, below = known_providers().rungs["large"], None if small is None else small.place

    def apart(rung: Rung) -> float:
        price = None if rung.facts is None else rung.facts.price
        return math.inf if price is None or not price.input else round(abs(math.log(price.input / about)), 1)

    given = [one for one in offers if small is None or (one.place, one.model) != (small.place, small.model)]
    found = min(given, key=lambda one: (one.lacks, apart(one), one.place is below), default=None)
    if found is None or len(given) == 1:
        return found
    why = f"its price is nearest ${about:g} per million tokens in"
    if found.place is not below:
        why += f", and {found.place.name} answers while {below.name if below else 'another'} does not"
    return replace(found, why=why)


def _chosen(place: ModelServer, model: str, about: float) -> str | None:
    """Return the model that the file names; where it is not listed or retires, the listed one whose price is nearest.

    None if no listed model with a known price is near it.
    """
    facts = shipped_facts()
    known = facts.find(place.url, model)
    if (place.models is None or model in place.models) and (known is None or not retirement(known.retires)):
        return model
    apart: dict[str, float] = {}
    for name in _chats(place.models or ()):
        found = facts.find(place.url, name)
        if found is not None and found.price is not None and found.price.input and not retirement(found.retires):
            apart[name] = abs(math.log(found.price.input / about))
    nearest = min(apart, key=lambda name: (apart[name], name), default=None)
    return nearest if nearest is not None and apart[nearest] <= math.log(_TOO_FAR) else None


def _chats(models: Sequence[str]) -> list[str]:
    return [name for name in models if not any(part in name.lower() for part in _NO_CHAT)]


def costs(rungs: Sequence[Rung]) -> dict[str, dict[str, Any]]:
    """Return for each shipped surface its typical tokens, and what 1,000 requests cost in US dollars by tier."""
    return {
        surface: {
            "tokens_in": tokens_in,
            "tokens_out": tokens_out,
            "usd": {
                rung.tier: None if (usd := rung.usd(tokens_in, tokens_out)) is None else round(usd * 1000, 4)
                for rung in rungs
            },
        }
        for surface, (tokens_in, tokens_out) in known_providers().typical.items()
    }


def verifier_advice(rungs: Sequence[Rung]) -> str:
    """Return what to write in the policies where a rung below the last gives no log-probabilities; '' if nothing."""
    silent = [rung.tier for rung in rungs[:-1] if not rung.logprobs]
    if not silent:
        return ""
    judge = rungs[0].tier if rungs[0].place.provider is None else ""
    what = f"judge: {{backend: {judge}}}" if judge else "agreement: {samples: 1}"
    of = " and ".join(silent)
    return f"answers of {of} have no log-probabilities; write in each policy, under escalate: `{what}`"


def tiers_text(rungs: Sequence[Rung], shipped: str) -> str:
    """Return the `tiers:` section with these rungs; where none is on this machine, with the shipped local one."""
    local = shipped[: shipped.index("  - name: hosted\n")]
    parts = [local if not rungs or rungs[0].place.provider is not None else "tiers: # cheapest first\n"]
    return "".join((*parts, *map(_tier_text, rungs)))


def _tier_text(rung: Rung) -> str:
    provider, price = rung.place.provider, None if rung.facts is None else rung.facts.price
    lines = [f"  - name: {rung.tier}", "    backends:"]
    if provider is None:
        lines += [
            f"      - kind: openai # {rung.place.name}, on this machine",
            f"        base_url: {rung.place.url}",
            f"        model: {_quoted(rung.model)}",
            "        max_in_flight: 16 # calls at a time, of all workers together",
            "        capabilities: [json] # add tools and vision if the model can call tools and see",
            "        watch_drafts: true # read drafts as they are written, and cancel a poor one early",
            "        # logprobs: false # if it gives no log-probabilities; escalate.judge or agreement then judge it",
        ]
        return "\n".join(lines) + "\n\n"
    cost = "not known; write price: {input: ..., output: ...}"
    if price is not None:
        cost = f"${price.input:g} in, ${price.output:g} out per million tokens (tierline prices check)"
    lines += [
        f"      - kind: {provider.kind} # {provider.name}",
        f"        base_url: {rung.place.url}",
        f"        model: {_quoted(rung.model)} # {cost}",
        f"        auth: {{kind: {provider.auth}}}" if provider.auth else f"        key_env: {provider.key_env}",
        "        max_in_flight: 64",
        "        continuation: prompt # asked in words to go on with an answer that another model began",
        f"        capabilities: [{', '.join(provider.capabilities)}]",
    ]
    if provider.kind != "anthropic" and not rung.logprobs:
        lines.append("        logprobs: false # its API returns none, so a policy names who judges its answers")
    return "\n".join(lines) + "\n\n"


def _quoted(name: str) -> str:
    """Return a name as YAML reads it whatever is in it: a JSON string."""
    return orjson.dumps(name).decode()
