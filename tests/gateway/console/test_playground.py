"""What sends the playground's prompts: replies of all kinds in words, and races, few at once and not kept for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache.store.redis_store import RedisStore
from gateway.archive.live import LiveArchive
from gateway.config.schema import ConsoleConfig
from gateway.console.gateway_client import GatewayClient, GatewayFailure, ReplyPart
from gateway.console.prompt_race import LaneChoice, Prompt, PromptRace, PromptRaces, TooManyRaces
from gateway.console.server import CannotServeConsole, gateway_of
from gateway.console.svg.prompt_race import arrivals, segments
from gateway.console.views.playground import race_data
from tests.gateway.telemetry.conftest import server, store
from tests.support.ports import free_port
from tests.support.upstream import Fault, Reply, Upstream, error_reply
from tests.support.wait import eventually

__all__ = ["server", "store"]

CHAT = LaneChoice("chat/live", "chat", "in force", "live")
HOSTED = LaneChoice("chat/tier/hosted", "chat", "tier hosted alone", "live", "hosted")


async def parts_of(url: str, *, stream: bool) -> list[ReplyPart]:
    client = GatewayClient(url, "the-key")
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    try:
        return [part async for part in client.ask(body, {"x-request-id": "one"})]
    finally:
        await client.aclose()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_is_read_as_it_comes(upstream: Upstream, *, stream: bool) -> None:
    upstream.default = Reply(text="It is blue.")
    parts = await parts_of(upstream.url, stream=stream)
    assert "".join(part.text for part in parts) == "It is blue." and parts[-1].finish + parts[-2].finish == "stop"
    assert upstream.requests[0].headers["authorization"] == "Bearer the-key"


@pytest.mark.parametrize(
    ("reply", "stream", "words"),
    [
        (error_reply(503), True, "answered 503"),
        (Reply(text="a b c", fault=Fault.EOF_MID_STREAM, fault_after=2), True, "ended before it was whole"),
        (Reply(text="a b c", fault=Fault.CLOSE_MID_STREAM, fault_after=2), True, "in the middle of the reply"),
        (Reply(fault=Fault.CLOSE_BEFORE_HEADERS), True, "before a reply"),
        (Reply(text="a b c", fault=Fault.ERROR_MID_STREAM, fault_after=2), True, ""),
        (Reply(text="a b c", fault=Fault.MALFORMED_EVENT, fault_after=2), True, "not what a gateway sends"),
        (Reply(fault=Fault.HTML), True, ""),
        (Reply(fault=Fault.HTML), False, "not what a gateway sends"),
        (Reply(fault=Fault.GIANT), False, "longer than 1 MiB"),
    ],
)
async def test_a_reply_that_is_not_whole_is_said_in_words(
    upstream: Upstream, reply: Reply, words: str, *, stream: bool
) -> None:
    upstream.default = reply
    with pytest.raises(GatewayFailure) as failure:
        await parts_of(upstream.url, stream=stream)
    assert words in failure.value.what and failure.value.what and failure.value.reached


async def test_few_races_run_at_once_and_the_latest_are_kept(
    store: RedisStore, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.default = Reply(before_first_s=60)
    archive = LiveArchive(tmp_path, store)
    races = PromptRaces(GatewayClient(upstream.url), archive)
    running = [races.start(Prompt("hi"), [CHAT, HOSTED]) for _ in range(4)]
    with pytest.raises(TooManyRaces, match="4 races"):
        races.start(Prompt("hi"), [CHAT, HOSTED])
    await eventually(lambda: len(upstream.requests) == 8, 5, "all lanes")
    await races.aclose()
    assert all(lane.state == "stopped" for race in running for lane in race.lanes)

    races = PromptRaces(GatewayClient(f"http://127.0.0.1:{free_port()}"), archive)
    ended: list[PromptRace] = []
    for _ in range(35):
        ended.append(races.start(Prompt("hi"), [CHAT, HOSTED]))
        await races.finished(ended[-1])
    assert [races.find(race.id) is race for race in ended] == [False] * 3 + [True] * 32
    await races.aclose()
    await archive.aclose()


async def test_a_race_that_waits_is_shown_as_far_as_it_came(
    store: RedisStore, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.default = Reply(text="a b c", between_s=0.01)
    archive = LiveArchive(tmp_path, store)
    races = PromptRaces(GatewayClient(upstream.url), archive)
    race = races.start(Prompt("hi"), [CHAT, HOSTED])
    data = race_data(race)
    assert data["running"] and not data["over"] and not data["compared"]
    assert [lane["seen"] for lane in data["lanes"]] == ["no text yet"] * 2
    await eventually(lambda: all(lane.over for lane in race.lanes), 5, "both lanes")
    data = race_data(race)
    assert not data["running"] and [lane["text"] for lane in data["lanes"]] == ["a b c"] * 2
    assert all(0 < at <= data["end_ms"] for lane in data["lanes"] for at in lane["arrivals_ms"])
    assert len(data["compared"]) == 2  # this upstream is no gateway, and says nothing of the cost
    await races.aclose()
    await archive.aclose()


def test_the_drawing_says_in_words_what_it_shows() -> None:
    drawn = segments([("wait", 0, 40), ("held", 40, 100), ("sent", 100, 200)], 200, "local <b> & co")
    assert 'aria-label="local &lt;b&gt; &amp; co"' in drawn and drawn.count("<rect") == 3
    seen = arrivals([float(n) for n in range(2399)], 1.0, 2400.0, 2400.0, "first text after 0 ms")
    assert 'aria-label="first text after 0 ms"' in seen and seen.count("race-token") <= 400


def test_a_key_that_is_named_has_to_be_set() -> None:
    with pytest.raises(CannotServeConsole, match="PLAY_KEY is not set"):
        gateway_of(ConsoleConfig(gateway="http://127.0.0.1:8787", gateway_key_env="PLAY_KEY"), {})
    assert gateway_of(ConsoleConfig(), {}) is None
