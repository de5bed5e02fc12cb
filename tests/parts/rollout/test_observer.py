"""Which answers are drawn to be compared: of the real application, over sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.app import in_process
from tests.support.gateway import CHAT, config
from tests.support.metrics import samples_of
from tests.support.store import LocalStore
from tests.support.upstream import Upstream
from tests.support.wait import eventually


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_is_drawn_for_whoever_reads_it(
    upstream: Upstream, hosted_upstream: Upstream, store: LocalStore, tmp_path: Path, stream: bool
) -> None:
    """A policy that learns from every answer draws whole ones and streams alike, once each, and stores them too."""
    learning = CHAT + "learn: {share: 100%, judge: judge, max_usd_per_day: 1}\n"
    tiers = config(upstream.url, hosted_upstream.url)["tiers"]
    judge = {"name": "judge", "base_url": hosted_upstream.url, "model": "judge", "price": {"input": 1, "output": 1}}
    tiers.append({"name": "judges", "backends": [judge]})
    async with in_process(
        tmp_path,
        upstream.url,
        hosted_upstream.url,
        store_url=store.url,
        policies={"chat": learning},
        settings={"tiers": tiers},
    ) as app:

        def drawn() -> float:
            samples = samples_of(app.steps.metrics, "learn_comparisons")
            return sum(sample.value for sample in samples if sample.name.endswith("_total"))

        await app.ask("asked", stream=stream)
        await eventually(lambda: drawn() > 0, 10, "the comparison")
        await asyncio.sleep(0.05)
        assert drawn() == 1
        await app.kept("asked")
