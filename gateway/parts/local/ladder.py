"""Propose a ladder of up to three rungs, from the keys in the environment and the servers on this machine.

The rungs are `local` (a server on this machine, else the model that `tierline up` starts), `hosted` (about $0.10 per
million tokens of prompt) and `large` (about $2). Further servers that were named are, in their order, another backend
of a rung with the same model, the hosted and the large rung where no key makes these, or a rung of their own. Where
there are keys of several providers, each hosted rung is of the one that suits it best, and says why. Servers are asked
for their models, all at once, and those that do not answer in time are left out; a hosted provider that does not answer
gets the models of the shipped file.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import httpx2
import orjson

from gateway.config.backends import retirement
from gateway.config.environment import Environ
from gateway.parts.local.model_lengths import context_in_props, contexts_in
from gateway.parts.prices.model_facts import HostedModel, Provider, known_providers, offered, shipped_facts

NEAR_S: Final = 0.5
"""Longest wait for a server on this machine, in seconds."""
FAR_S: Final = 4.0
"""Longest wait for a provider's list of models, in seconds."""
_TOO_FAR: Final = 4.0
"""By how much the price of a listed model may differ from the rung's."""
_HOSTED: Final = ("hosted", "large")
"""The rungs above those of servers, in their order."""
_NO_LIST: Final = (
    TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, UnicodeError, ValueError, LookupError, TypeError, AttributeError,
)  # fmt: skip
"""What a server that answers otherwise than with a list of models raises."""
_NO_CHAT: Final = ("embed", "whisper", "tts", "rerank", "moderation", "guard", "audio", "image")
"""Parts of the names of models that answer no chat."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A server or a provider that was looked at. `models` is None if it did not answer, or refused a key."""

    name: str
    url: str
    models: tuple[str, ...] | None
    provider: Provider | None = None
    key_env: str = ""
    """Variable with the key that the server took; '' if it asked for none."""
    refused: bool = False
    """Whether it asks for a key, and there was none or another."""
    contexts: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Tokens that models hold, prompt and answer together, where the server says so."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One tier of the proposal: a model of a place, with what the shipped facts know of it."""

    tier: str
    model: str
    place: ModelServer
    facts: HostedModel | None = None
    why: str = ""
    """Why this one, where there was a choice of providers."""
    also: tuple[ModelServer, ...] = ()
    """Further servers that have this model."""

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


async def look_around(environ: Environ, servers: Mapping[str, str], key_env: str = "") -> list[ModelServer]:
    """Return the servers that answer and the providers with a key, each with its list of models.

    A server that asks for a key gets the one in the variable `key_env`.
    """
    timeout = httpx2.Timeout(FAR_S)
    async with httpx2.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=False) as client:
        near = [_near(client, name, url, key_env, environ.get(key_env, "")) for name, url in servers.items()]
        offers = list(offered(environ))
        far = [_listed(client, one.name, url, one, environ[one.key_env], FAR_S) for one, url in offers if not one.auth]
        places = await asyncio.gather(*near, *far)
    places += [ModelServer(provider.name, url, None, provider) for provider, url in offers if provider.auth]
    return [place for place in places if place.provider is not None or place.models or place.refused]


async def _near(client: httpx2.AsyncClient, name: str, url: str, key_env: str, key: str) -> ModelServer:
    """Ask a server without a key, and if it refuses that with the one there is."""
    place = await _listed(client, name, url, None, "", NEAR_S)
    own = ""
    if place.refused and key:
        place = await _listed(client, name, url, None, key, NEAR_S)
        place, own = (place, "") if place.refused else (replace(place, key_env=key_env), key)
    if place.models and not place.contexts:
        context = await _context(client, url.removesuffix("/v1"), own)
        place = place if context is None else replace(place, contexts=dict.fromkeys(place.models, context))
    return place


async def _context(client: httpx2.AsyncClient, url: str, key: str) -> int | None:
    """Return the context length that a llama.cpp server tells; None for another server."""
    try:
        async with asyncio.timeout(NEAR_S):
            reply = await client.get(f"{url}/props", headers={"authorization": f"Bearer {key}"} if key else {})
        return context_in_props(orjson.loads(reply.content)) if reply.status_code == 200 else None
    except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, UnicodeError, ValueError):
        return None


async def _listed(
    client: httpx2.AsyncClient, name: str, url: str, provider: Provider | None, key: str, within_s: float
) -> ModelServer:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if provider is not None and provider.kind == "anthropic":
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        url = url if url.endswith("/v1") else f"{url}/v1"
    refused, contexts = False, dict[str, int]()
    try:
        async with asyncio.timeout(within_s):
            reply = await client.get(f"{url}/models", headers=headers)
        refused = reply.status_code in (401, 403)
        listed = orjson.loads(reply.content)["data"] if reply.status_code == 200 else None
        models = None if listed is None else tuple(str(model["id"]).removeprefix("models/") for model in listed)
        contexts = contexts_in(listed) if listed and provider is None else contexts
    except (
        TimeoutError,
        httpx2.HTTPError,
        httpx2.InvalidURL,
        UnicodeError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ):
        models = None
    return ModelServer(name, url, models, provider, refused=refused and models is None, contexts=contexts)


def ladder(places: Sequence[ModelServer], named: Collection[str] = ()) -> list[Rung]:
    """Return the proposed rungs, cheapest first: those of servers, then a small and a large hosted one.

    Of the servers it takes the first that has a model for chats, and all whose URL was `named`.
    """
    hosted = _cheapest([*_offers("hosted", "small", places)])
    large = _strongest([*_offers("large", "large", places)], hosted)
    given = {rung.tier: rung for rung in (hosted, large) if rung is not None}
    own: dict[str, Rung] = {}
    for place in places:
        chats = _chats(place.models or ()) if place.provider is None else []
        if not chats or (own and place.url not in named):
            continue
        same = next((rung for rung in own.values() if rung.model in chats), None)
        if same is not None:
            own[same.tier] = replace(same, also=(*same.also, place))
            continue
        free = [name for name in ("local", *_HOSTED) if name not in own and name not in given]
        tier = free[0] if free else f"local-{sum(name.startswith('local') for name in own) + 1}"
        own[tier] = Rung(tier, chats[0], place)
    of_servers = [rung for name, rung in own.items() if name not in _HOSTED]
    every = {**own, **given}
    return [*of_servers, *(every[name] for name in _HOSTED if name in every)]


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

    best = min(offers, key=lambda offer: (offer.lacks, cost(offer), not offer.logprobs), default=None)
    if best is None or len(offers) == 1:
        return best

    def shown(rung: Rung) -> str:
        return "its price is not known" if math.isinf(cost(rung)) else f"${cost(rung):.2f}"

    others = ", ".join(f"{offer.model} {shown(offer)}" for offer in offers if offer is not best)
    signal = "with log-probabilities, " if best.logprobs and not all(offer.logprobs for offer in offers) else ""
    blind = " (not all see pictures)" if best.lacks < max(offer.lacks for offer in offers) else ""
    own = shown(best) if math.isinf(cost(best)) else f"{shown(best)} per 1,000 chats"
    return replace(best, why=f"{signal}{own}; others: {others}{blind}")


def _strongest(offers: Sequence[Rung], small: Rung | None) -> Rung | None:
    """Return the one of those that can most whose price is nearest the rung's; if need be, of another provider.

    Prices stand for strength, which no fact states.
    """
    about, below = known_providers().rungs["large"], None if small is None else small.place

    def apart(rung: Rung) -> float:
        price = None if rung.facts is None else rung.facts.price
        return math.inf if price is None or not price.input else round(abs(math.log(price.input / about)), 1)

    given = [offer for offer in offers if small is None or (offer.place, offer.model) != (small.place, small.model)]
    best = min(given, key=lambda offer: (offer.lacks, apart(offer), offer.place is below), default=None)
    if best is None or len(given) == 1:
        return best
    why = f"its price is nearest ${about:g} per million tokens in"
    if math.isinf(apart(best)):
        why = "no price of these is known"
    if below is not None and best.place is not below:
        why += f", and it is of another provider: an outage of {below.name} leaves it up"
    return replace(best, why=why)


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
        entry = facts.find(place.url, name)
        if entry is not None and entry.price is not None and entry.price.input and not retirement(entry.retires):
            apart[name] = abs(math.log(entry.price.input / about))
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


def tiers_text(rungs: Sequence[Rung], shipped: str) -> str:
    """Return the `tiers:` section with these rungs, and the shipped tier of each name that none of them has.

    The shipped policies name all three; one that lacks a key or a URL is left out of their ladders until it has it.
    """
    head, *texts = shipped.split("  - name: ")
    own = {rung.tier: _tier_text(rung) for rung in rungs}
    whole = {text.split(None, 1)[0]: f"  - name: {text.rstrip()}\n\n" for text in texts} | own
    order = [*(name for name in whole if name not in _HOSTED), *_HOSTED]
    return "".join(("tiers: # cheapest first\n" if "local" in own else head, *(whole[name] for name in order)))


def _tier_text(rung: Rung) -> str:
    provider, price = rung.place.provider, None if rung.facts is None else rung.facts.price
    lines = [f"  - name: {rung.tier}", "    backends:"]
    for place in (rung.place, *rung.also) if provider is None else ():
        context = place.contexts.get(rung.model)
        lines += [
            f"      - kind: openai # {place.name}",
            f"        base_url: {place.url}",
            f"        model: {_quoted(rung.model)}",
            *([f"        key_env: {place.key_env}"] if place.key_env else []),
            *([f"        context: {context} # tokens of prompt and answer, as it says"] if context else []),
            "        price: {input: 0, output: 0} # taken to be your own; else write US dollars per million tokens",
            "        max_in_flight: 16 # calls at a time, of all workers together",
            "        capabilities: [json] # add tools and vision if the model can call tools and see",
            "        watch_drafts: true # read drafts as they are written, and cancel a poor one early",
            "        # logprobs: false # if it gives no log-probabilities; escalate.judge or agreement then judge it",
        ]
    if provider is None:
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
