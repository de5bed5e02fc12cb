"""What judging costs a stream: one that is committed after its first tokens, and one that the next tier takes over."""

from __future__ import annotations

from tests.bench.live.arrivals import open_loop, poisson
from tests.bench.live.behaviour import Behaviour, Spread
from tests.bench.live.client import Answer
from tests.bench.live.scenario import Run, lag_ms, ms, paired, streams, warm_up
from tests.bench.live.stage import Play, Stage, stage, uvloop
from tests.bench.live.table import Row, most, spread
from tests.bench.live.upstream import Record

_HOLD = 24
_RATE = 25.0
_POLICY = """
surface: {name}
slo: {{deadline: 20s}}
tiers: [local, hosted]
route: {{classifier: none, start: {{local: otherwise}}}}
escalate:
  when: {{uncalibrated_below: {below}}}
  stream: {{hold_tokens: 24, hold_max: 5s}}
holdout: 0
"""
_LOCAL = Behaviour(seed=11, ttft=Spread(60, 120), pace=8.0, length=Spread(60, 80), mark=_HOLD)
_HOSTED = Behaviour(seed=12, ttft=Spread(200, 400), pace=8.0, length=Spread(60, 80), mark=1)


def commit(run: Run) -> list[Row]:
    """Streams that are good enough."""
    play = Play({"commits": _POLICY.format(name="commits", below=0.01)})
    with stage(run.cores, play) as on:
        return uvloop.run(_commit(run, on))


async def _commit(run: Run, on: Stage) -> list[Row]:
    times = poisson(_RATE, run.seconds(40, 1), seed=1)
    run.say(f"commit: {len(times)} streams, first straight to the model server")
    await on.local.behave(_LOCAL)
    async with on.clients(port=on.local.port) as direct:
        bare = paired(await open_loop(direct, streams("any", times)), (await on.local.seen()).by_id())
    run.say(f"commit: {len(times)} streams through the gateway")
    async with on.clients() as clients:
        await warm_up(clients, "commits", _LOCAL, [on.local])
        answers = await open_loop(clients, streams("commits", times))
    through = paired(answers, (await on.local.seen()).by_id())
    return [
        Row("commit", "yardstick: client's TTFT less the server's, no gateway", spread(map(_of_first, bare)), "ms"),
        Row("commit", "yardstick: how late the client sends", spread(lag_ms(answers)), "ms"),
        Row(
            "commit",
            f"TTFT less the server's own time to token {_HOLD}",
            spread(map(_added, through)),
            "ms",
            (most("p50", 1), most("p99", 5)),
        ),
        Row(
            "commit",
            f"server sends token {_HOLD} to client has the first",
            spread(ms(answer.first_ns - call.marked_ns) for answer, call in through),
            "ms",
            (most("p50", 1), most("p99", 5)),
        ),
    ]


def _of_first(pair: tuple[Answer, Record]) -> float:
    answer, call = pair
    return answer.ttft_ms - ms(call.first_ns - call.arrived_ns)


def _added(pair: tuple[Answer, Record]) -> float:
    answer, call = pair
    return answer.ttft_ms - ms(call.marked_ns - call.arrived_ns)


def escalated(run: Run) -> list[Row]:
    """Streams that are not."""
    play = Play({"escalates": _POLICY.format(name="escalates", below=0.9999)})
    with stage(run.cores, play) as on:
        return uvloop.run(_escalated(run, on))


async def _escalated(run: Run, on: Stage) -> list[Row]:
    times = poisson(_RATE, run.seconds(30, 1), seed=2)
    run.say(f"escalated: {len(times)} streams")
    async with on.clients() as clients:
        await warm_up(clients, "escalates", _LOCAL, [on.local, on.hosted])
        await on.hosted.behave(_HOSTED)
        answers = await open_loop(clients, streams("escalates", times))
    first, second = (await on.local.seen()).by_id(), (await on.hosted.seen()).by_id()
    added = [
        answer.ttft_ms - ms(held.marked_ns - held.arrived_ns) - ms(call.first_ns - call.arrived_ns)
        for answer, call in paired(answers, second)
        if (held := first.get(answer.ask.number)) is not None and held.marked_ns
    ]
    cancelled = [ms(call.gone_ns - call.marked_ns) for call in first.values() if call.gone_ns and call.marked_ns]
    return [
        Row("escalated", "TTFT less hold and the next tier's own TTFT", spread(added), "ms", (most("p99", 10),)),
        Row(
            "escalated",
            f"draft cancelled, from its token {_HOLD}",
            spread(cancelled),
            "ms",
            (most("p99", 100),),
        ),
    ]
