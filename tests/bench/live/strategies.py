"""The same prompts, the same model servers, four ways of using them, held against each other on every axis.

ours        the draft's first tokens are held and judged; then it streams, or the large model takes over
buffered    the draft is judged when it is whole, as a cascade does that has no streaming form
large       every request goes to the large model
append      the draft streams at once and is judged at its end; a poor one has the large model's answer put behind it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.bench.live.arrivals import Sender, open_loop, poisson
from tests.bench.live.behaviour import Behaviour, Spread
from tests.bench.live.client import Answer, Ask, Clients
from tests.bench.live.scenario import Run, share
from tests.bench.live.stage import CHEAP, DEAR, Play, Stage, stage, uvloop
from tests.bench.live.table import Limit, Row, least, most, quantile

_RATE = 28.0
_BAR = 0.85
_BAR_OF_A_PREFIX = 0.858
_HOLD = 40
"""A prefix says less than the whole answer. With this bar for so many tokens, judging prefixes lets no more wrong ones
through than judging whole ones with the other: chosen on prompts 5,000 to 11,000, of which none is asked here."""
_TTFT_P95_MS = 1500.0
_QUALITY_GIVEN_UP = 0.12
_COST_TAKEN_ON = 0.10
"""What the policy allows: a TTFT p95 (its slo), so many points of the share right that always-large has, and so much
more than judging whole answers costs."""
_POLICY = """
surface: {name}
slo: {{deadline: 60s, ttft: {{p95: 1500ms}}}}
tiers: [{tiers}]
route: {{classifier: none, start: {{{start}: otherwise}}}}
escalate:
  when: {{uncalibrated_below: {bar}}}
  stream: {{hold_tokens: {tokens}, hold_max: {longest}}}
holdout: 0
"""
_LOCAL = Behaviour(seed=81, ttft=Spread(60, 150), pace=4.0, right=0.6, auroc=0.75, token_probability=_BAR)
_HOSTED = Behaviour(seed=82, ttft=Spread(450, 900), pace=8.0, right=0.9)


@dataclass(frozen=True, slots=True)
class _Found:
    """One strategy, in figures: times in ms, dollars for 1,000 requests, shares."""

    ttft_p50: float
    ttft_p95: float
    final_p50: float
    final_p95: float
    cost: float
    wasted: float
    right: float
    withdrawn: float
    answered: float


def strategies(run: Run) -> list[Row]:
    """One strategy after another, each with all prompts."""
    with stage(run.cores, Play(_policies())) as on:
        return uvloop.run(_strategies(run, on))


def _policies() -> Mapping[str, str]:
    def one(name: str, tiers: str, bar: float, tokens: int, longest: str) -> str:
        start = tiers.partition(",")[0]
        return _POLICY.format(name=name, tiers=tiers, start=start, bar=bar, tokens=tokens, longest=longest)

    return {
        "ours": one("ours", "local, hosted", _BAR_OF_A_PREFIX, _HOLD, "400ms"),
        "buffered": one("buffered", "local, hosted", _BAR, 256, "60s"),
        "large": one("large", "hosted", 0, 1, "60s"),
        "draft": one("draft", "local", 0, 1, "60s"),
    }


async def _strategies(run: Run, on: Stage) -> list[Row]:
    length = Spread(40, 60) if run.quick else Spread(90, 150)
    await on.local.behave(replace(_LOCAL, length=length))
    await on.hosted.behave(replace(_HOSTED, length=length))
    times = poisson(60 if run.quick else _RATE, 1e9, seed=8, most=30 if run.quick else 1_000)
    found: dict[str, _Found] = {}
    async with on.clients(256) as clients:
        await open_loop(clients, [(n / 50, Ask(n, "ours", 10**6 + n)) for n in range(1, 31)])
        for name in ("ours", "buffered", "large", "append"):
            await on.forget()
            run.say(f"strategies: {name}, {len(times):,} prompts")
            found[name] = await _play(on, clients, name, times)
    return _rows(found)


async def _play(on: Stage, clients: Clients, name: str, times: Sequence[float]) -> _Found:
    appending = _Appending(clients)
    sender: Sender = appending if name == "append" else clients
    surface = "draft" if name == "append" else name
    drafts = [(at, Ask(n, surface, n, logprobs=name == "append")) for n, at in enumerate(times, 1)]
    shown = await open_loop(sender, drafts)
    finals = [appending.corrections.get(answer.ask.number, answer) for answer in shown]
    cost, wasted = await _dollars(on, finals)
    pairs = [(answer, final) for answer, final in zip(shown, finals, strict=True) if answer.ok and final.ok]
    ttft = [answer.ttft_ms for answer, _ in pairs]
    whole = [(final.done_ns - answer.sent_ns) / 1e6 for answer, final in pairs]
    return _Found(
        ttft_p50=quantile(ttft, 0.5),
        ttft_p95=quantile(ttft, 0.95),
        final_p50=quantile(whole, 0.5),
        final_p95=quantile(whole, 0.95),
        cost=cost / len(times) * 1000,
        wasted=wasted / cost,
        right=share(final.right for _, final in pairs),
        withdrawn=len(appending.corrections) / len(times),
        answered=len(pairs) / len(times),
    )


class _Appending:
    """Sends for a draft, and for the large model's answer if the whole draft is not sure enough."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.corrections: dict[int, Answer] = {}

    async def send(self, ask: Ask, due_ns: int = 0) -> Answer:
        """The draft, as it streamed."""
        draft = await self._clients.send(ask, due_ns)
        if draft.ok and draft.token_probability < _BAR:
            correction = Ask(ask.number, "large", ask.prompt)
            self.corrections[ask.number] = await self._clients.send(correction)
        return draft


async def _dollars(on: Stage, finals: Sequence[Answer]) -> tuple[float, float]:
    """By the servers' own count: all that was spent, and what of it went into answers that are not the final ones."""
    dear = {final.ask.number for final in finals if final.headers.get("x-tierline-tier") == "hosted"}
    spent = wasted = 0.0
    for backend, prices in ((on.local, CHEAP), (on.hosted, DEAR)):
        for call in (await backend.seen()).calls:
            dollars = prices.of(call.tokens_in, call.tokens_out)
            spent += dollars
            wasted += dollars if (call.bench_id in dear) != (backend is on.hosted) else 0.0
    return spent, wasted


def _rows(found: Mapping[str, _Found]) -> list[Row]:
    buffered, large = found["buffered"], found["large"]

    def row(what: str, unit: str, axis: Callable[[_Found], float], *limits: Limit) -> Row:
        return Row("strategies", what, {name: axis(one) for name, one in found.items()}, unit, limits)

    def not_the_worse(axis: Callable[[_Found], float]) -> Limit:
        return most("ours", max(axis(buffered), axis(large)))

    rows = [
        row("TTFT p50", "ms", lambda f: f.ttft_p50, not_the_worse(lambda f: f.ttft_p50)),
        row("TTFT p95", "ms", lambda f: f.ttft_p95, not_the_worse(lambda f: f.ttft_p95), most("ours", _TTFT_P95_MS)),
        row("final answer p50", "ms", lambda f: f.final_p50),
        row("final answer p95", "ms", lambda f: f.final_p95),
        row(
            "cost of 1,000",
            "$",
            lambda f: f.cost,
            not_the_worse(lambda f: f.cost),
            most("ours", buffered.cost * (1 + _COST_TAKEN_ON)),
        ),
        row("of it for tokens that are in no final answer", "%", lambda f: f.wasted),
        row(
            "right",
            "%",
            lambda f: f.right,
            least("ours", min(buffered.right, large.right)),
            least("ours", large.right - _QUALITY_GIVEN_UP),
        ),
        row("clients that were shown a draft and then another answer", "%", lambda f: f.withdrawn),
        row("answered", "%", lambda f: f.answered),
    ]
    return [*rows, Row("strategies", _said(found), {})]


def _said(found: Mapping[str, _Found]) -> str:
    """One line: every strategy by every axis, the best first."""
    axes: tuple[tuple[str, Callable[[_Found], float]], ...] = (
        ("TTFT p50", lambda f: f.ttft_p50),
        ("TTFT p95", lambda f: f.ttft_p95),
        ("final p95", lambda f: f.final_p95),
        ("cost", lambda f: f.cost),
        ("right", lambda f: -f.right),
    )
    parts = [f"{name}: {' < '.join(sorted(found, key=lambda one: axis(found[one])))}" for name, axis in axes]
    return "the best first; " + "; ".join(parts)
