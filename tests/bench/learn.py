"""Measure what `tierline fit learn` makes of judged traffic whose difficulty differs from anything shipped.

    python -m tests.bench.learn [--prompts 1500] [--seed 1]

Three scripted models on sockets, the real application in this process and a real store answer, compare and judge
prompts of a made-up language (`tests.support.strange_models`); the ledger's keeper writes the labels into files; and
`tierline fit learn` fits to them. Its own figures are of the conversations that it held out. Then both classifiers rank
2,000 further prompts, of which the truth is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cache.store.redis_store import RedisStore
from gateway.cli.main import main as tierline
from gateway.parts.fit.curves import Blocks, Curve
from gateway.parts.fit.figures import interval
from gateway.parts.ledger.folder import locked
from gateway.parts.ledger.keeper import Keeper, Rotation
from routing.difficulty.model import DifficultyModel, shipped_artefact
from routing.embedder import StaticEmbedder
from routing.features import features_of_text
from tests.bench.command import bench_parser
from tests.support.app import in_process
from tests.support.store import UNHURRIED, local_store
from tests.support.strange_models import RIGHT, WRONG, Language
from tests.support.upstream import Received, Reply, Upstream
from tests.support.wait import eventually

POLICY = """
surface: chat
slo: {deadline: 60s}
holdout: 0%
tiers: [local, hosted]
route: {start: {local: easiest 40% of its kind, hosted: otherwise}}
escalate: {no_signal: accept}
learn: {share: 100%, judge: judge, max_usd_per_day: 1000, max_tokens: 32}
"""
_WAITING = 16
_FRESH = 2000
_RESAMPLES = 1000


@dataclass(frozen=True)
class Learnt:
    """What the command printed, its exit code, and APGR on fresh prompts of the own and the shipped classifier."""

    printed: dict[str, Any]
    code: int
    own: tuple[float, float, float]
    shipped: tuple[float, float, float]


def answered_by(language: Language, model: int, upstream: Upstream) -> None:
    """Let the small (0) or the strong (1) model answer as the language says."""
    upstream.default = Reply(text=WRONG)
    upstream.on(lambda request: language.is_right(request.prompt, model)).reply(text=RIGHT)


def judged_by(upstream: Upstream) -> None:
    """Let the judge see which answers are right; of equal ones neither is better."""

    def said(first: str, second: str) -> Any:
        def match(request: Received) -> bool:
            data = orjson.loads(request.prompt.rpartition("\n\n")[0])
            return (data["answer_a"], data["answer_b"]) == (first, second)

        return match

    for first in (RIGHT, WRONG):
        for second in (RIGHT, WRONG):
            better = "tie" if first == second else "A" if first == RIGHT else "B"
            verdict = {"better": better, "adequate_a": first == RIGHT, "adequate_b": second == RIGHT}
            upstream.on(said(first, second)).reply(text=orjson.dumps(verdict).decode())


async def label(folder: Path, language: Language, prompts: list[str]) -> None:
    """Send the prompts through the gateway, wait for their labels, and keep them in `folder/ledger`."""
    with Upstream() as small, Upstream() as large, Upstream() as judge, local_store() as server:
        answered_by(language, 0, small)
        answered_by(language, 1, large)
        judged_by(judge)
        tiers = [
            {"name": name, "backends": [{"name": backend, "base_url": one.url, "model": f"{backend}-1"}]}
            for name, backend, one in (
                ("local", "small", small),
                ("hosted", "large", large),
                ("judges", "judge", judge),
            )
        ]
        async with in_process(
            folder, small.url, store_url=server.url, policies={"chat": POLICY}, settings={"tiers": tiers}
        ) as app:

            def ended() -> float:
                samples = app.steps.metrics.comparisons.collect()[0].samples
                return sum(one.value for one in samples if one.name.endswith("_total"))

            for sent, prompt in enumerate(prompts, start=1):
                assert (await app.ask(prompt)).status_code == 200
                while sent - ended() > _WAITING:
                    await asyncio.sleep(0.002)
            await eventually(lambda: ended() >= len(prompts), 60)
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        with locked(folder / "ledger"):
            await Keeper(store, folder / "ledger", Rotation(), lambda _: None).catch_up()
        await store.aclose()


def learn(folder: Path) -> tuple[int, dict[str, Any]]:
    """Run `tierline fit learn` over the ledger in `folder`; return its exit code and what it printed."""
    words = [
        "fit",
        "learn",
        "--surface",
        "chat",
        "--ledger",
        str(folder / "ledger"),
        "--out",
        str(folder / "policies/learned"),
    ]
    words += ["--config", str(folder / "tierline.yaml"), "--policies", str(folder / "policies"), "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = tierline(words)
    return code, orjson.loads(out.getvalue() or b"{}")


def measured(folder: Path, prompts: int, seed: int, fresh: int = _FRESH) -> Learnt:
    """Label so many prompts, learn, and rank fresh prompts."""
    language, chance = Language.made(seed), random.Random(seed)
    asyncio.run(label(folder, language, [language.prompt(chance) for _ in range(prompts)]))
    code, printed = learn(folder)
    embedder = StaticEmbedder.load()
    some = [language.prompt(chance) for _ in range(fresh)]
    gain = np.array([language.is_right(one, 1) - float(language.is_right(one, 0)) for one in some])
    artefact = printed.get("proposed", {}).get("artefact")
    figures = []
    for where in (artefact, shipped_artefact("static")):
        if where is None:
            figures.append((0.5, 0.5, 0.5))
            continue
        model = DifficultyModel.load(Path(where), embedder)
        rated = [model.assess(v, features_of_text(one)) for v, one in zip(embedder.embed(some), some, strict=True)]
        inside = np.array([one.in_domain for one in rated])
        score = np.array([one.p_right[-1] - one.p_right[0] for one in rated])
        blocks = Blocks.of(np.where(inside, score, score[inside].mean() if inside.any() else 0.0))
        weights = np.random.default_rng(seed).multinomial(fresh, np.full(fresh, 1 / fresh), _RESAMPLES).astype(float)
        value = float(Curve.of(blocks, gain, np.ones((1, fresh))).recovered()[0])
        with_interval = interval(value, Curve.of(blocks, gain, weights).recovered())
        figures.append((with_interval.value, with_interval.lo, with_interval.hi))
    return Learnt(printed, code, figures[0], figures[1])


def main() -> None:
    """Print the figures."""
    parser = bench_parser("learn", __doc__)
    parser.add_argument("--prompts", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        learnt = measured(Path(folder), args.prompts, args.seed)
    printed = learnt.printed
    for name in ("own", "other"):
        apgr, ece = printed["measured"][name]["apgr"], printed["measured"][name]["ece"]
        print(
            f"{name:8} held out ({printed['measured']['labels']} labels)  APGR {apgr['value']:.3f} "
            f"[{apgr['lo']:.3f}, {apgr['hi']:.3f}]  ECE {ece['value']:.3f}  "
            f"abstains {printed['measured'][name]['abstains']:.0%}"
        )
    for name, (value, low, high) in (("own", learnt.own), ("shipped", learnt.shipped)):
        print(f"{name:8} {_FRESH} fresh prompts  APGR {value:.3f} [{low:.3f}, {high:.3f}]")
    print(f"{printed['labels']} labels; {printed['verdict']}; exit {learnt.code}; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
