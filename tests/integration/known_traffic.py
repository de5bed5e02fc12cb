"""Send known traffic through a real gateway to scripted providers, and say what is true of it from both ends.

What the clients sent and got is one end, what each provider was asked and answered is the other. Every question has a
number (`q17`), by which the calls of all providers are found again, so a `Truth` is computed without the gateway's own
records: how many requests ended how, what each provider is owed, what the strongest one alone would have billed.

    good      200, whole, within the limits          late      200, after `total.p99`
    failed    no provider answered                   refused   over a limit of its own, or invalid

It comes by every API: as chat completions, text completions, messages and responses (whole, streamed and over a
WebSocket), which are chats, and beside them as embeddings, images, audio and a path that is passed on, which two
services answer. A collector gets what the gateway exports over OTLP.

Two things only the gateway can know of: a stream that it gave up has no usage, so its tokens are the gateway's own
count, and so are its dollars (`Asked.cut`). They are a small part, which the tolerances allow for. One that lost a race
before it said anything is taken to be as long as the answers of its surface and tier, of which twenty come before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import orjson
import redis
from websockets.sync.client import ClientConnection, connect

from cache.store.redis_store import RedisStore
from gateway.parts.access.keys.records import KeyRecord
from gateway.parts.access.keys.registry import KeyRegistry
from gateway.parts.access.quotas.terms import Budget, Terms
from gateway.telemetry.ledger import TRACES
from tests.parts.access.keys.conftest import WHY, minted
from tests.parts.otlp.collector import Collector
from tests.support.gateway import Gateway, serve
from tests.support.store import UNHURRIED, local_store
from tests.support.upstream import Received, Reply, Upstream, error_reply
from tests.support.wait import SLOWNESS, until

PRICES: Final[Mapping[str, tuple[float, float]]] = {
    "local": (0.5, 2.0), "hosted": (2.5, 10.0), "judge": (1.0, 1.0), "vectors": (20.0, 0.0), "extras": (0.0, 0.0),
}  # fmt: skip
"""US dollars for a million tokens in and out, by provider, which is also the name of its tier, or of the service."""
_MOST_TRIES: Final = 50
UNIT_PRICE: Final = 0.0004
"""US dollars of each image, each MiB of an upload of audio, and each other request that `extras` answers."""
RECORDING: Final = bytes(1_300_000)
"""What is uploaded to be transcribed: two MiB, of which one is begun."""
CHATS: Final = ("chat", "messages", "responses", "socket", "completions")
"""APIs whose requests are chats; the surface of each other is `SURFACE/API`."""
LATE_S: Final = 0.3
"""The limit of the surface `slow` for a whole answer; the other surfaces have twenty seconds."""
_RULES: Final = """
slo: {{deadline: 20s{total}}}
holdout: 0
tiers: [{tiers}]
route: {{classifier: none, start: {{{first}: otherwise}}}}
escalate:
  when: {{confidence_below: 0.5, uncalibrated_below: 0.5, invalid: [json]}}
  no_signal: accept
  stream: {{hold_tokens: 4, hold_max: 2s}}
{more}cache:
  exact: {{ttl: 1h}}
"""
_MEANING: Final = "  semantic: {ttl: 1h, audit: 0%}\n"
_ALIKE: Final = (
    ("What is the capital city of Italy?", "What's the capital city of Italy?"),
    ("What is the capital city of Spain?", "What's the capital city of Spain?"),
)
"""Questions to the surface `wide`, by number of those, and the same in other words."""
_SERVICES: Final = (
    "endpoints: {embeddings: {service: vectors, model: v, ttl: 1h}, images: extras, audio: extras, "
    "other: {/v1/rerank: extras}}\n"
)
_RACING: Final = f"  hedge: {{after: {800 * SLOWNESS:.0f}ms, max_extra_spend: 100%}}\n"
_JUDGED: Final = "  verify: [logprobs, judge]\n  judge: {backend: judge, within: 5s}\n"
DRAFT: Final = "a short answer of the small model, as it gives one to most questions"
"""What the provider `local` answers; what it answers in doubt has as many words."""
_MOST_FORM: Final = 400
"""Bytes of a form that has a number in its first field."""
_NUMBER: Final = re.compile(r"\bq(\d+)\b")


def policy_of(surface: str, more: str = "") -> str:
    """The text of a surface's policy; `more` stands in `escalate`."""
    tiers, total = ("hosted", f", total: {{p99: {LATE_S}s}}") if surface == "slow" else ("local, hosted", "")
    rules = _RULES.format(total=total, tiers=tiers, first=tiers.partition(",")[0], more=more)
    rules = rules.replace("holdout: 0", "holdout: 50%") if surface == "drawn" else rules
    rules += {"chat": _SERVICES, "wide": _MEANING}.get(surface, "")
    return f"surface: {surface}\nmatch: {{models: [{surface}]}}{rules}"


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a provider: what it was asked, and what it reported. `cut`: the gateway left before the usage."""

    provider: str
    number: int
    tokens_in: int
    tokens_out: int
    cut: bool
    failed: bool
    units: int = 0
    """What it made that is billed by number."""

    @property
    def usd(self) -> float:
        """What the provider bills for it."""
        given, made = PRICES[self.provider]
        return (self.tokens_in * given + self.tokens_out * made) / 1e6 + self.units * UNIT_PRICE


@dataclass(slots=True)
class Sent:
    """One request of a client: whose it was, what it should become (`kind`), and what came."""

    number: int
    surface: str
    kind: str
    key: str
    """Name of its key; empty without one."""
    api: str = "chat"
    missed: int = 0
    """How often it was asked before, and was not in the cache."""
    status: int = 0
    path: str = ""
    request_id: str = ""
    took_s: float = 0.0
    calls: list[Asked] = field(default_factory=list)

    @property
    def streams(self) -> bool:
        """Whether its answer is a stream."""
        return self.kind in ("streamed", "doubtful stream", "slow", "raced")

    @property
    def served(self) -> Asked | None:
        """The call whose text the client got: the last of the tiers that did not fail; None for a hit or an error."""
        if self.status != 200 or self.path.startswith("cache"):
            return None
        return next(call for call in reversed(self.calls) if call.provider != "judge" and not call.failed)

    @property
    def usd(self) -> float:
        """What providers bill for it, the judge too."""
        return math.fsum(call.usd for call in self.calls)


@dataclass(slots=True)
class Truth:
    """What was sent, with the calls that it caused."""

    sent: list[Sent]
    keys: Mapping[str, KeyRecord]
    """By name."""

    def of(self, *kinds: str, surface: str = "", key: str | None = None) -> list[Sent]:
        """The requests of some kinds, or all, of a surface and of a key's name."""
        return [
            one
            for one in self.sent
            if (not kinds or one.kind in kinds) and surface in ("", one.surface) and key in (None, one.key)
        ]

    def calls(self, provider: str) -> list[Asked]:
        """The calls of a provider."""
        return [call for one in self.sent for call in one.calls if call.provider == provider]

    def ended(self, what: str, surface: str = "") -> list[Sent]:
        """The requests that ended so: good, late, failed or refused; see the module's docstring."""
        return [one for one in self.of(surface=surface) if one.api in CHATS and _ENDED[one.kind] == what]

    def alone_usd(self, some: Iterable[Sent]) -> float:
        """What the strongest provider alone would have billed for the same answers, hits included."""
        return math.fsum(Asked("hosted", 0, *self.answer_of(one), False, False).usd for one in some)

    def answer_of(self, one: Sent) -> tuple[int, int]:
        """Tokens in and out of the answer that a client got: of a hit those of the stored answer."""
        if one.path.startswith("cache"):
            one = next(other for other in self.sent if other.number == one.number and other.path == "direct")
        call = one.served
        assert call is not None
        return call.tokens_in, call.tokens_out

    @property
    def chats(self) -> list[Sent]:
        """Requests of chats: what is passed on, or embedded, has no deadline and no strongest tier."""
        return [one for one in self.sent if one.api in CHATS]

    @property
    def answered(self) -> list[Sent]:
        """Chats that got an answer."""
        return [one for one in self.chats if one.status == 200]


_ENDED: Final = {
    "plain": "good", "streamed": "good", "doubtful": "good", "doubtful stream": "good", "hit": "good",
    "alike": "good", "judged": "good", "rejected": "good", "slow": "late", "broken": "failed", "limited": "refused",
    "invalid": "refused", "made": "", "lost": "",
    "missed": "good", "raced": "good",
}  # fmt: skip
"""How requests of each kind end; empty for what is no chat."""
KINDS: Final[Sequence[tuple[str, str, str, str, int]]] = (
    ("plain", "chat", "chat", "web", 9), ("plain", "chat", "chat", "ops", 4), ("streamed", "chat", "chat", "web", 5),
    ("doubtful", "chat", "chat", "web", 4), ("doubtful stream", "chat", "chat", "ops", 8),
    ("plain", "messages", "chat", "web", 2), ("streamed", "messages", "chat", "ops", 2),
    ("doubtful", "messages", "chat", "web", 2), ("doubtful stream", "messages", "chat", "web", 2),
    ("plain", "responses", "chat", "ops", 2), ("streamed", "responses", "chat", "web", 2),
    ("doubtful", "responses", "chat", "ops", 2), ("doubtful stream", "responses", "chat", "ops", 2),
    ("streamed", "socket", "chat", "web", 3), ("doubtful stream", "socket", "chat", "web", 2),
    ("plain", "completions", "chat", "web", 2), ("streamed", "completions", "chat", "ops", 2),
    ("doubtful", "completions", "chat", "ops", 2), ("doubtful stream", "completions", "chat", "web", 2),
    ("plain", "chat", "desk", "beta", 4), ("judged", "chat", "desk", "beta", 6), ("rejected", "chat", "desk", "ops", 4),
    ("slow", "chat", "slow", "web", 3), ("plain", "chat", "wide", "web", len(_ALIKE)),
    ("plain", "chat", "race", "ops", 20), ("raced", "chat", "race", "ops", 2), ("plain", "chat", "drawn", "ops", 8),
    ("made", "embeddings", "chat/embeddings", "web", 3), ("made", "images", "chat/images", "ops", 2),
    ("made", "speech", "chat/audio", "ops", 2), ("made", "transcription", "chat/audio", "web", 2),
    ("made", "rerank", "chat/rerank", "web", 2), ("invalid", "chat", "chat", "web", 2),
)  # fmt: skip
"""Kind, API, surface, key and number of what is sent; then come the hits, 7 requests of a key that may send 2 a minute,
and at last, as breakers open by them, those that no provider answers."""
HITS: Final = {"chat": 6, "messages": 1, "responses": 1, "embeddings": 1, "completions": 1}
"""Number of requests that are sent once more, by API."""


class Provider(Upstream):
    """A scripted provider that says of each call what it bills: 40 tokens in and 1 for each word of its answer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def asked(self) -> Iterator[Asked]:
        """Its calls."""
        for request in self.requests:
            reply, text = request.reply, _text_of(request)
            assert reply is not None
            found = _NUMBER.search(text)
            assert found is not None, text
            failed = reply.status != 200
            made = 0 if failed else len(reply.pieces())
            cut = request.gone_at is not None
            yield Asked(self.name, int(found[1]), 0 if failed else _tokens_in(reply), made, cut, failed)


class Service(Provider):
    """A scripted service: 25 tokens a text that is embedded or ranked, and so many images as were asked for."""

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if request.method != "POST":
            return super().reply_to(request)
        self.requests.append(request)
        if "lost" in str(request.body):
            return error_reply(500)
        if "/audio/" in request.path:
            return Reply(body=b'{"text": "what was said"}')
        usage = {"prompt_tokens": 25, "total_tokens": 25}
        data = [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8], "url": "http://localhost/picture"}]
        body = {"object": "list", "model": "v", "data": data * int(request.body.get("n", 1))}
        return Reply(body=orjson.dumps(body if request.path.endswith("/generations") else {**body, "usage": usage}))

    def asked(self) -> Iterator[Asked]:
        """Its calls."""
        for request in self.requests:
            assert request.reply is not None and request.reply.body is not None
            text = str(request.body or request.raw[:_MOST_FORM].decode("latin-1"))
            found = _NUMBER.search(text)
            assert found is not None, text
            made, failed = orjson.loads(request.reply.body), request.reply.status != 200
            tokens = made.get("usage", {}).get("prompt_tokens", 0)
            units = (len(made["data"]) if "data" in made else _mib(request.raw)) if self.name == "extras" else 0
            yield Asked(self.name, int(found[1]), tokens, 0, request.gone_at is not None, failed, units)


def _mib(raw: bytes) -> int:
    return math.ceil(len(raw) / (1 << 20))


def _tokens_in(reply: Reply) -> int:
    assert isinstance(reply.usage, dict)
    return int(reply.usage["prompt_tokens"])


def _text_of(request: Received) -> str:
    return str(request.body["messages"])


def answer(text: str, **more: Any) -> Reply:
    """A reply whose provider says what it bills."""
    words = len(Reply(text=text).pieces())
    usage = {"prompt_tokens": 40, "completion_tokens": words, "total_tokens": 40 + words}
    return Reply(text=text, usage=usage, **more)


def _script(local: Provider, hosted: Provider, judge: Provider) -> None:
    local.default = answer(DRAFT, logprob=-0.05)
    hosted.default = answer("a longer and a better answer of the large model, in some more words", logprob=-0.01)
    judge.default = answer("yes", logprob=-0.01)
    judge.on("rejected").reply(answer("no", logprob=-0.01))
    doubtful = answer("perhaps this one or that or yet another thing, who knows that at all", logprob=-3.0)
    local.on("doubtful").reply(doubtful)
    # Its end comes so late that the gateway has left by then: a stream that was given up has no usage.
    local.on("doubtful stream").reply(answer(doubtful.text, logprob=-3.0, between_s=0.05))
    local.on("a raced question").reply(answer(DRAFT, before_headers_s=30.0))
    local.on(lambda one: "desk" in _text_of(one)).reply(
        answer("an answer without any log-probabilities of it", no_logprobs=True)
    )
    hosted.on("a slow question").reply(answer("a slow answer of the large model", between_s=0.15))
    for provider in (local, hosted):
        provider.on("broken").reply(error_reply(500))


@dataclass(slots=True)
class KnownTraffic:
    """A gateway that has answered the traffic, and still runs."""

    gateway: Gateway
    store_url: str
    truth: Truth
    secrets: Mapping[str, str]
    collector: Collector


@contextmanager
def known_traffic(folder: Path) -> Iterator[KnownTraffic]:
    """Start providers, store and gateway, send the traffic, and yield once all of it is recorded."""
    with (
        local_store() as store, Provider("local") as local, Provider("hosted") as hosted, Provider("judge") as judge,
        Service("vectors") as vectors, Service("extras") as extras, Collector() as collector,
    ):  # fmt: skip
        _script(local, hosted, judge)
        secrets, keys = _keys(store.url)
        tiers = [
            {
                "name": one.name,
                "backends": [
                    {
                        "base_url": one.url, "model": f"{one.name}-model", "logprobs": True,
                        "price": dict(zip(("input", "output"), PRICES[one.name], strict=True)),
                        "capabilities": ["tools", "json"],
                    }
                ],
            }
            for one in (local, hosted, judge)
        ]  # fmt: skip
        settings = {
            "tiers": tiers, "default_surface": "chat", "access": {"public_metrics": True},
            "policies": {"source": "store"},
            "embedding": {"state": str(folder / "state")},
            "services": {
                "vectors": {"base_url": vectors.url, "prices": {"v": PRICES["vectors"][0]}},
                "extras": {"base_url": extras.url, "request_price": UNIT_PRICE},
            },
        }  # fmt: skip
        policies = {name: policy_of(name) for name in ("chat", "slow", "wide", "drawn")}
        policies |= {"desk": policy_of("desk", _JUDGED), "race": policy_of("race", _RACING)}
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_METRIC_EXPORT_INTERVAL": "500"}
        with serve(
            folder, local.url, hosted.url, store_url=store.url, policies=policies, settings=settings, env=env
        ) as gateway:
            sent = _traffic(gateway, secrets)
            with redis.Redis.from_url(store.url) as client:
                until(lambda: client.xlen(TRACES) >= len(sent), 20, "the records")
            providers = (local, hosted, judge, vectors, extras)
            _attach(sent, [call for provider in providers for call in provider.asked()])
            yield KnownTraffic(gateway, store.url, Truth(sent, keys), secrets, collector)


def _keys(url: str) -> tuple[dict[str, str], dict[str, KeyRecord]]:
    """Make the keys of the traffic; return their secrets and their records, by name."""
    month = Terms(budgets=(Budget(usd=1.0, per="month"),))
    kinds: dict[str, dict[str, Any]] = {
        "web": {"tenant": "acme", "team": "web", "terms": month},
        "ops": {"tenant": "acme", "team": "ops"},
        "beta": {"tenant": "beta", "team": "desk"},
        "hasty": {"tenant": "beta", "team": "desk", "terms": Terms(requests_per_minute=2)},
    }

    async def make() -> tuple[dict[str, str], dict[str, KeyRecord]]:
        opened = RedisStore.from_url(url, slack=UNHURRIED)
        secrets, records = {}, {}
        try:
            for name, fields in kinds.items():
                secrets[name], record = minted(name=f"the key of {name}", **fields)
                records[name] = await KeyRegistry(opened).create(record, WHY)
        finally:
            await opened.aclose()
        return secrets, records

    return asyncio.run(make())


def _traffic(gateway: Gateway, secrets: Mapping[str, str]) -> list[Sent]:
    """Send everything, one request after the other."""
    planned: list[Sent] = []
    for kind, api, surface, key, count in KINDS:
        planned += [Sent(len(planned) + n, surface, kind, key, api) for n in range(count)]
    with httpx2.Client(timeout=60) as client, contextlib.ExitStack() as open_sockets:

        @functools.cache
        def socket_of(key: str) -> ClientConnection:
            url = f"{gateway.url.replace('http', 'ws')}/responses"
            headers = {"authorization": f"Bearer {secrets[key]}"}
            return open_sockets.enter_context(connect(url, additional_headers=headers))

        def ask(one: Sent) -> Sent:
            began = time.monotonic()
            if one.api == "socket":
                _ask_socket(socket_of(one.key), one)
            else:
                _ask(client, gateway, one, secrets)
            one.took_s = time.monotonic() - began
            return one

        sent = [ask(one) for one in planned]

        def repeat(first: Sent, kind: str) -> None:
            """Ask until the cache answers: it may not have it yet, or a busy machine's store may miss its time."""
            for missed in range(_MOST_TRIES):
                sent.append(ask(Sent(first.number, first.surface, kind, first.key, first.api, missed)))
                if sent[-1].path.startswith("cache"):
                    return
                sent[-1].kind = "missed"

        for api, count in HITS.items():
            stored = [
                one for one in planned if one.kind in ("plain", "made") and (one.api, one.surface[:4]) == (api, "chat")
            ]
            for one in stored[:count]:
                repeat(one, "hit")
        for one in [one for one in planned if one.surface == "wide"]:
            repeat(one, "alike")
        for kind, surface, key in (
            *[("plain", "chat", "hasty")] * 2,
            *[("limited", "chat", "hasty")] * 5,
            *[("lost", "chat/embeddings", "ops")] * 2,
            *[("broken", "desk", "beta")] * 5,
        ):
            sent.append(ask(Sent(len(sent), surface, kind, key, surface.partition("/")[2] or "chat")))
    return sent


def _text(one: Sent) -> str:
    """What a request asks."""
    if one.surface == "wide":
        # A wording that was not recognised is itself in the cache the next time.
        return f"{_ALIKE[one.number % len(_ALIKE)][one.kind == 'alike']} (q{one.number}){'!' * one.missed}"
    word = {"hit": "made" if one.api == "embeddings" else "plain", "limited": "plain"}.get(one.kind, one.kind)
    return f"q{one.number} of {one.surface}: a {word} question ".ljust(64, ".")


def _body(one: Sent) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request, as its API has them."""
    text, model = _text(one), one.surface.partition("/")[0]
    if one.api == "embeddings":
        return "/embeddings", {"model": model, "input": text}
    if one.api == "images":
        return "/images/generations", {"model": "painter", "prompt": text, "n": 2}
    if one.api == "speech":
        return "/audio/speech", {"model": "speaker", "input": text, "voice": "alloy"}
    if one.api == "transcription":
        return "/audio/transcriptions", {"prompt": text, "model": "writer"}
    if one.api == "rerank":
        return "/rerank", {"model": "ranker", "query": text, "documents": ["a", "b"]}
    stream = {"stream": True} if one.streams else {}
    if one.api in ("responses", "socket"):
        return "/responses", {"model": model, "input": text, "store": False, **stream}
    if one.api == "completions":
        return "/completions", {"model": model, "prompt": text, "max_tokens": 500, **stream}
    messages = [] if one.kind == "invalid" else [{"role": "user", "content": text}]
    path, more = ("/messages", {"max_tokens": 500}) if one.api == "messages" else ("/chat/completions", {})
    return path, {"model": model, "messages": messages, **stream, **more}


def _ask(client: httpx2.Client, gateway: Gateway, one: Sent, secrets: Mapping[str, str]) -> None:
    path, body = _body(one)
    headers = {"authorization": f"Bearer {secrets[one.key]}"}
    sent: dict[str, Any] = {"json": body}
    if one.api == "transcription":
        sent = {"data": body, "files": {"file": ("said.wav", RECORDING, "audio/wav")}}
    with client.stream("POST", gateway.url + path, headers=headers, **sent) as reply, suppress(httpx2.HTTPError):
        reply.read()
    one.status, one.path = reply.status_code, reply.headers.get("x-tierline-path", "")
    one.request_id = reply.headers["x-request-id"]


def _ask_socket(socket: ClientConnection, one: Sent) -> None:
    """Ask over a WebSocket, whose events tell neither the path of a request (`_attach` does) nor its id."""
    socket.send(orjson.dumps({"type": "response.create", **_body(one)[1]}).decode())
    while (event := orjson.loads(socket.recv(60)))["type"] not in ("response.completed", "response.failed", "error"):
        pass
    one.status = 200 if event["type"] == "response.completed" else 500


def _attach(sent: Sequence[Sent], calls: Iterable[Asked]) -> None:
    """Give each request the calls that it caused: those of a hit are its first asker's.

    A question that the cache did not have when it was asked again has one call each time.
    """
    by_number: dict[int, list[Sent]] = {}
    for one in sent:
        if one.kind not in ("hit", "alike"):
            by_number.setdefault(one.number, []).append(one)
    for call in calls:
        askers = by_number[call.number]
        askers[0].calls.append(call)
        if len(askers) > 1:
            askers.pop(0)
    for one in sent:
        if one.api == "socket":
            one.path = "escalated" if one.calls[-1].provider == "hosted" else "direct"
