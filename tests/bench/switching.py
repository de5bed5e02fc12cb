"""What conversations cost with switching weighed and without: cached tokens, money, time to the first token.

    python -m tests.bench.switching                    # a minute; --conversations 40, --seed 1

Plays the same conversations through a gateway before a scripted provider that keeps prompts for a while
(`tests.support.timed_caches`), once for each way to route them: each turn by its rule (`flips`), with
`route.weigh_switching` (`weighed`), and all at the large model (`pinned`). Turns are hard in runs; half of the hard
ones are known by their rule, half by a draft that is not sure. Time runs a hundred times faster than people do: the
provider keeps a prompt for 3 s, and turns follow each other after 0.7 s at the median, one in fourteen after more than
3 s.
Intervals of 95% are from 1000 resamples of the
conversations; `saves` is money against the first way, conversation by conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2

from tests.support.gateway import serve
from tests.support.timed_caches import TimedChat
from tests.support.upstream import Reply

Json = dict[str, Any]
T = TypeVar("T")
WAYS: Final = {"flips": "false", "weighed": "true", "pinned": "false"}
PRICES: Final[dict[str, tuple[Json, Json]]] = {
    "1 : 2": ({"input": 1, "cached_input": 0.1, "output": 5}, {"input": 2, "cached_input": 0.2, "output": 10}),
    "1 : 5": ({"input": 1, "cached_input": 0.1, "output": 5}, {"input": 5, "cached_input": 0.5, "output": 25}),
    "1 : 20": ({"input": 0.1, "cached_input": 0.01, "output": 0.5}, {"input": 2, "cached_input": 0.2, "output": 10}),
}
"""US dollars per million tokens of the small and the large model, by their ratio."""
COLD_S: Final = {"small": 15e-6, "large": 40e-6}
LIFETIME_S: Final = 3.0
POLICY: Final = """surface: chat
match: {models: [chat]}
slo: {deadline: 20s}
tiers: [small, large]
route:
  classifier: none
  start: {small: "tokens_in > 0 and not wants_json", large: otherwise}
  weigh_switching: WEIGHS
escalate: {when: {confidence_below: 0.5}, no_signal: accept}
cache: {never: ["turns > 0"]}
holdout: 0%
prompt_cache: off
"""
TURNS: Final = 12


@dataclass
class Talked:
    """One conversation: tokens, cached tokens and US dollars of its calls, waits in seconds, and hard turns."""

    tokens: int = 0
    cached: int = 0
    usd: float = 0.0
    waits: list[float] = field(default_factory=list)
    hard: int = 0
    got_large: int = 0


def planned(draw: random.Random) -> list[tuple[str, float]]:
    """The turns of a conversation: easy, by rule or unsure, each with the seconds before it."""
    hard, turns = draw.random() < 0.4, []
    for _ in range(TURNS):
        pause_s = min(6.0, draw.lognormvariate(-0.4, 1.0))
        turns.append((draw.choice(("rule", "unsure")) if hard else "easy", pause_s))
        hard = draw.random() < (0.5 if hard else 0.2)
    return turns


async def talk(client: httpx2.AsyncClient, name: str, plan: Sequence[tuple[str, float]], way: str) -> Talked:
    """Play one conversation, streamed."""
    told = Talked()
    messages: list[Json] = [{"role": "system", "content": f"{name}. " + "You answer letters of an archive. " * 900}]
    for kind, pause_s in plan:
        await asyncio.sleep(pause_s)
        asked = ("A letter of the archive follows. " * 60) + ("I am unsure." if kind == "unsure" else "What is said?")
        messages.append({"role": "user", "content": asked})
        body: Json = {"model": "tier:large" if way == "pinned" else "chat", "stream": True, "messages": messages}
        body |= {"stream_options": {"include_usage": True}}
        body |= {"response_format": {"type": "json_object"}} if kind == "rule" else {}
        began, first = time.perf_counter(), 0.0
        headers = {"x-tierline-session": name, "x-tierline-surface": "chat"}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {") and '"content":"' in line.replace(" ", ""):
                    first = first or time.perf_counter() - began
            tier = str(reply.headers["x-tierline-tier"])
        told.waits.append(first)
        told.hard += kind != "easy"
        told.got_large += kind != "easy" and tier == "large"
        messages.append({"role": "assistant", "content": "It says that all are well."})
    return told


async def played(plans: Sequence[Sequence[tuple[str, float]]], prices: tuple[Json, Json], way: str) -> list[Talked]:
    """Play all conversations through a gateway of its own, twenty at a time."""
    with TimedChat(COLD_S) as server, tempfile.TemporaryDirectory() as folder:
        server.cache.lifetime_s = LIFETIME_S
        server.default = Reply(text="It says that all are well, and asks for news of the house.")
        server.on(lambda request: request.body["model"] == "small" and "unsure" in request.prompt).reply(
            text="Perhaps it says so, perhaps not.", logprob=-3.0
        )

        def tier(name: str, price: Json) -> Json:
            own = {"base_url": server.url, "model": name, "price": price, "prompt_lifetime": f"{LIFETIME_S:.0f}s"}
            return {"name": name, "backends": [{**own, "capabilities": ["json"]}]}

        settings = {"tiers": [tier("small", prices[0]), tier("large", prices[1])]}
        policies = {"chat": POLICY.replace("WEIGHS", WAYS[way])}
        with serve(Path(folder), server.url, policies=policies, settings=settings) as gateway:
            gate = asyncio.Semaphore(20)
            async with httpx2.AsyncClient(base_url=gateway.origin, timeout=60) as client:

                async def one(number: int) -> Talked:
                    async with gate:
                        return await talk(client, f"talk {number}", plans[number], way)

                told = await asyncio.gather(*map(one, range(len(plans))))
        for request, call in zip(server.requests, server.calls, strict=True):
            whose = told[int(request.body["messages"][0]["content"].split(".")[0].removeprefix("talk "))]
            price = prices[call.model == "large"]
            whose.tokens, whose.cached = whose.tokens + call.tokens, whose.cached + call.cached
            read = (call.tokens - call.cached) * price["input"] + call.cached * price["cached_input"]
            whose.usd += (read + 12 * price["output"]) * 1e-6
    return list(told)


def interval(told: Sequence[T], figure: Callable[[Sequence[T]], float]) -> tuple[float, float, float]:
    """A figure of the conversations and its interval."""
    draw = random.Random(7)
    again = sorted(figure(draw.choices(told, k=len(told))) for _ in range(1000))
    return figure(told), again[25], again[974]


FIGURES: Final[dict[str, tuple[Callable[[Sequence[Talked]], float], str]]] = {
    "cached": (lambda told: sum(one.cached for one in told) / sum(one.tokens for one in told), "{:.1%}"),
    "$ per 1000 talks": (lambda told: 1000 * sum(one.usd for one in told) / len(told), "{:.2f}"),
    "first token, mean": (lambda told: statistics.fmean(w for one in told for w in one.waits) * 1000, "{:.0f} ms"),
    "first token, p95": (
        lambda told: statistics.quantiles([w for one in told for w in one.waits], n=20)[-1] * 1000, "{:.0f} ms",
    ),
    "hard turns at large": (lambda told: sum(one.got_large for one in told) / sum(one.hard for one in told), "{:.1%}"),
}  # fmt: skip


def main() -> None:
    """Print a table of each ratio of prices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ratios", nargs="+", default=list(PRICES), choices=list(PRICES))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    args = parser.parse_args()
    draw = random.Random(args.seed)
    plans = [planned(draw) for _ in range(args.conversations)]
    for ratio in args.ratios:
        sys.stdout.write(f"prices {ratio}, {args.conversations} conversations of {TURNS} turns\n")
        base: list[Talked] = []
        for way in args.ways:
            told = asyncio.run(played(plans, PRICES[ratio], way))
            cells: list[str] = []
            base = base or told
            saved = [(one.usd, other.usd) for one, other in zip(base, told, strict=True)]
            less = interval(saved, lambda pairs: 1 - sum(b for _, b in pairs) / sum(a for a, _ in pairs))
            cells += ["saves {:.1%} [{:.1%}, {:.1%}]".format(*less)] if told is not base else []
            for name, (figure, form) in FIGURES.items():
                value, low, high = (form.format(one) for one in interval(told, figure))
                cells.append(f"{name} {value} [{low}, {high}]")
            sys.stdout.write(f"  {way:8} {'   '.join(cells)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
