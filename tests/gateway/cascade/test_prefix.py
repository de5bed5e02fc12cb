"""The held beginning of a stream."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.app import in_process
from tests.support.gateway import CHAT
from tests.support.upstream import Reply, Upstream

HELD = CHAT.replace("slo: {deadline: 20s}", "slo: {ttft: {p99: 1500ms}, deadline: 20s}").replace(
    "hold_tokens: 4, hold_max: 250ms", "hold_tokens: 256, hold_max: 10s"
)


async def test_a_hold_leaves_the_next_tier_the_time_to_take_over(tmp_path: Path) -> None:
    """It ends while the next tier's first token can still come in time, and a doubtful draft escalates then."""
    with Upstream() as small, Upstream() as large:
        small.default = Reply(text="no idea " * 60, logprob=-2.0, between_s=0.05)
        large.default = Reply(text="certain", before_first_s=0.3)
        async with in_process(tmp_path, small.url, large.url, policies={"chat": HELD}) as app:
            slow = [app.ask(f"how long do you take {n}", model="tier:hosted", stream=True) for n in range(20)]
            await asyncio.gather(*slow)  # from here on the large model's time to a first token is known
            reply = await app.ask("what then", {"x-tierline-debug": "1"}, stream=True)
            assert reply.headers["x-tierline-path"] == "escalated", reply.headers
            assert "certain" in reply.text and "no idea" not in reply.text
