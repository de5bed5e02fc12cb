"""Send known traffic through a real gateway to three scripted providers, and say what is true of it from both ends.

What the clients sent and got is one end, what each provider was asked and answered is the other. Every question has a
number (`q17`), by which the calls of all providers are found again, so a `Truth` is computed without the gateway's own
records: how many requests ended how, what each provider is owed, what the strongest one alone would have billed.

    good      200, whole, within the limits          late      200, after `total.p99`
    failed    no provider answered                   refused   over a limit of its own, or invalid

Two things only the gateway can know of: a stream that it gave up has no usage, so its tokens are the gateway's own
count, and so are its dollars (`Asked.cut`). They are a small part, which the tolerances allow for.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import redis

from cache.store.redis_store import RedisStore
from gateway.keys.records import KeyRecord
from gateway.keys.registry import KeyRegistry
from gateway.quotas.terms import Budget, Terms
from gateway.telemetry.ledger import TRACES
from tests.gateway.keys.conftest import WHY, minted
from tests.support.gateway import Gateway, serve
from tests.support.store import UNHURRIED, local_store
from tests.support.upstream import Received, Reply, Upstream, error_reply
from tests.support.wait import until

PRICES: Final[Mapping[str, tuple[float, float]]] = {"local": (0.5, 2.0), "hosted": (2.5, 10.0), "judge": (1.0, 1.0)}
"""US dollars for a million tokens in and out, by provider, which is also the name of its tier."""
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
_JUDGED: Final = "  verify: [logprobs, judge]\n  judge: {backend: judge, within: 5s}\n"
_NUMBER: Final = re.compile(r"\bq(\d+)\b")


def _policy(surface: str, more: str = "") -> str:
    tiers, total = ("hosted", f", total: {{p99: {LATE_S}s}}") if surface == "slow" else ("local, hosted", "")
    rules = _RULES.format(total=total, tiers=tiers, first=tiers.partition(",")[0], more=more)
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

    @property
    def usd(self) -> float:
        """What the provider bills for it."""
        given, made = PRICES[self.provider]
        return (self.tokens_in * given + self.tokens_out * made) / 1e6


@dataclass(slots=True)
class Sent:
    """One request of a client: whose it was, what it should become (`kind`), and what came."""

    number: int
    surface: str
    kind: str
    key: str
    """Name of its key; empty without one."""
    status: int = 0
    path: str = ""
    request_id: str = ""
    took_s: float = 0.0
    calls: list[Asked] = field(default_factory=list)

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
        return [one for one in self.of(surface=surface) if _ENDED[one.kind] == what]

    def alone_usd(self, some: Iterable[Sent]) -> float:
        """What the strongest provider alone would have billed for the same answers, hits included."""
        return math.fsum(Asked("hosted", 0, *self.answer_of(one), False, False).usd for one in some)

    def answer_of(self, one: Sent) -> tuple[int, int]:
        """Tokens in and out of the answer that a client got: of a hit those of the stored answer."""
        if one.path.startswith("cache"):
            [first] = [other for other in self.sent if other.number == one.number and other.path == "direct"]
            one = first
        call = one.served
        assert call is not None
        return call.tokens_in, call.tokens_out

    @property
    def answered(self) -> list[Sent]:
        """Requests that got an answer."""
        return [one for one in self.sent if one.status == 200]


_ENDED: Final = {
    "plain": "good", "streamed": "good", "doubtful": "good", "doubtful stream": "good", "hit": "good",
    "judged": "good", "rejected": "good", "slow": "late", "broken": "failed", "limited": "refused",
    "invalid": "refused",
}  # fmt: skip
"""How requests of each kind end."""
KINDS: Final[Sequence[tuple[str, str, str, int]]] = (
    ("plain", "chat", "web", 9), ("plain", "chat", "ops", 4), ("streamed", "chat", "web", 5),
    ("doubtful", "chat", "web", 4), ("doubtful stream", "chat", "ops", 8), ("plain", "desk", "beta", 4),
    ("judged", "desk", "beta", 6), ("rejected", "desk", "ops", 4),
    ("slow", "slow", "web", 3), ("invalid", "chat", "web", 2),
)  # fmt: skip
"""Kind, surface, key and number of what is sent; then come 6 hits, 7 requests of a key that may send 2 a minute, and at
last, as breakers open by them, those that no provider answers."""


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
    local.default = answer("a short answer of the small model", logprob=-0.05)
    hosted.default = answer("a longer and a better answer of the large model, in some more words", logprob=-0.01)
    judge.default = answer("yes", logprob=-0.01)
    judge.on("rejected").reply(answer("no", logprob=-0.01))
    doubtful = answer("perhaps this one or that or yet another thing, who knows that at all", logprob=-3.0)
    local.on("doubtful").reply(doubtful)
    # Its end comes so late that the gateway has left by then: a stream that was given up has no usage.
    local.on("doubtful stream").reply(answer(doubtful.text, logprob=-3.0, between_s=0.05))
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


@contextmanager
def known_traffic(folder: Path) -> Iterator[KnownTraffic]:
    """Start providers, store and gateway, send the traffic, and yield once all of it is recorded."""
    with local_store() as store, Provider("local") as local, Provider("hosted") as hosted, Provider("judge") as judge:
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
            "embedding": {"state": str(folder / "state")},
        }  # fmt: skip
        policies = {"chat": _policy("chat"), "desk": _policy("desk", _JUDGED), "slow": _policy("slow")}
        with serve(folder, local.url, hosted.url, store_url=store.url, policies=policies, settings=settings) as gateway:
            sent = _traffic(gateway, secrets)
            with redis.Redis.from_url(store.url) as client:
                until(lambda: client.xlen(TRACES) >= len(sent), 20, "the records")
            _attach(sent, [*local.asked(), *hosted.asked(), *judge.asked()])
            yield KnownTraffic(gateway, store.url, Truth(sent, keys), secrets)


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
    for kind, surface, key, count in KINDS:
        planned += [Sent(len(planned) + n, surface, kind, key) for n in range(count)]
    with httpx2.Client(timeout=60) as client:

        def ask(one: Sent) -> Sent:
            _ask(client, gateway, one, secrets)
            return one

        sent = [ask(one) for one in planned]
        stored = [one for one in planned if one.kind == "plain" and one.surface == "chat"][:6]
        time.sleep(0.3)  # answers are stored after their reply
        sent += [ask(Sent(one.number, "chat", "hit", one.key)) for one in stored]
        for kind, surface, key in (
            *[("plain", "chat", "hasty")] * 2,
            *[("limited", "chat", "hasty")] * 5,
            *[("broken", "chat", "ops")] * 3,
            *[("broken", "desk", "beta")] * 2,
        ):
            sent.append(ask(Sent(len(sent), surface, kind, key)))
    return sent


def _ask(client: httpx2.Client, gateway: Gateway, one: Sent, secrets: Mapping[str, str]) -> None:
    word = {"hit": "plain", "limited": "plain"}.get(one.kind, one.kind)
    text = f"q{one.number} of {one.surface}: a {word} question"
    body: dict[str, Any] = {"model": one.surface, "messages": [{"role": "user", "content": text}]}
    if one.kind in ("streamed", "doubtful stream", "slow"):
        body["stream"] = True
    if one.kind == "invalid":
        body["messages"] = []
    headers = {"authorization": f"Bearer {secrets[one.key]}"}
    began = time.monotonic()
    url = f"{gateway.url}/chat/completions"
    with client.stream("POST", url, json=body, headers=headers) as reply, suppress(httpx2.HTTPError):
        reply.read()
    one.took_s = time.monotonic() - began
    one.status, one.path = reply.status_code, reply.headers.get("x-tierline-path", "")
    one.request_id = reply.headers["x-request-id"]


def _attach(sent: Sequence[Sent], calls: Iterable[Asked]) -> None:
    """Give each request the calls that it caused: those of a hit are its first asker's."""
    by_number = {one.number: one for one in sent if one.kind != "hit"}
    for call in calls:
        by_number[call.number].calls.append(call)
