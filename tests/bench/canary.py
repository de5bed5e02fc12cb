"""What a canary's judge is worth: `python -m tests.bench.canary [--runs N] [--only PART ...]`.

    fall       goodput 98% to 93% where 1% is allowed: candidate's requests until it is taken back, against a test with
               a fixed sample that knows this fall and has the same two errors
    late       first tokens 150 ms later where 50 ms are allowed: candidate's requests until it is taken back, with the
               control's 95th percentile from before the step and from its first hundred requests, against the same
               kind of fixed sample
    collapse   goodput 98% to 68%: seconds until it is taken back, and the part of the first minute's users that met it
    passing    how soon a candidate like the control is shown to be within the limits, and one at the limit, wrongly
    harmless   candidate and control alike, looked at every second of a day: how often it is taken back
    judged     the quality guard with feedback on a few answers and a judge, who is too kind, on more: how often a
               candidate at the limit is taken back, and how soon a worse one, with and without the judge
    border     the same where nothing at all is allowed, so that each guard stands at the border of what it tests

Traffic is drawn anew for each run. That of `harmless` and `border` has conversations of 1 to 20 turns that fail, cost
and wait alike within a conversation, and its rates, times and costs move by the hour. The tests are those of
`sequential`, on arrays. 1,000 runs of `harmless` take about ten minutes on one core. The exit code is 1
where a target is missed; Ctrl-C prints the days that are done.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from gateway.parts.rollout.policy import Learn, Rollout
from gateway.parts.rollout.sequential import Sums, log_capital, mixture_radius, ratio_difference, split_capital
from gateway.parts.rollout.trial import Trial, floor_chance
from tests.bench.command import bench_parser

Array = np.ndarray
Line = tuple[str, bool]
"""A figure with its interval, and whether it meets its target."""
MOST_OF_ORACLE, MOST_SECONDS, MOST_USERS, MOST_BACK = 1.3, 60.0, 0.005, 0.05
STATED_PACE = 100
"""Conversations a second at which the targets of `collapse` hold."""
SURE, GUARDS, STEPS = 0.95, 4, 3
ALPHA = (1 - SURE) / GUARDS / STEPS
"""What one guard has in one step, as `gateway.parts.rollout.trial` shares it out."""
DAY = 86_400
PACE = 0.5
SHARE = 0.05
FLOOR = 0.9
_LAG_S = 3.0
"""From an outcome to the end of the share: the record's way, the judge's next look, and the workers' next."""


@dataclass(frozen=True)
class Day:
    """One day's requests, conversation by conversation, each in the order of its turns."""

    unit: Array
    second: Array
    bad: Array
    ttft: Array
    cost: Array
    score: Array
    """A rating from 0 to 1, NaN where there is none."""
    place: Array
    """The place of the request's conversation, 0 to 1: below the share it is the candidate's."""


def day(chance: np.random.Generator, pace: float = PACE) -> Day:
    """Return a day of clustered and drifting traffic with so many conversations a second on average."""
    count = chance.poisson(pace * DAY)
    begun = np.sort(chance.random(count * 2) * DAY)
    busy = 0.5 + 0.5 * np.sin(begun / DAY * 2 * math.pi - 2) ** 2
    begun = begun[chance.random(count * 2) < busy][:count]
    turns = np.where(chance.random(len(begun)) < 0.4, 1, chance.integers(1, 21, len(begun)))
    unit = np.repeat(np.arange(len(begun)), turns)
    first = np.cumsum(turns) - turns
    waits = chance.exponential(25.0, len(unit))
    waits[first] = 0.0
    passed = np.cumsum(waits)
    at = begun[unit] + passed - passed[first][unit]
    keep = at < DAY
    unit, at = unit[keep], at[keep]
    hour = np.sin(at / DAY * 2 * math.pi)
    # One conversation in eight fails in every other turn or so, the others seldom.
    hard = chance.random(len(begun)) < 0.125
    bad = chance.random(len(unit)) < np.where(hard[unit], 0.12, 0.006) * (1 + 0.6 * hour)
    wait = chance.normal(0, 0.35, len(begun))
    ttft = 0.3 * np.exp(0.3 * hour + wait[unit] + chance.normal(0, 0.5, len(unit)))
    size = chance.normal(0, 1.0, len(begun))
    cost = 0.001 * np.exp(0.3 * hour + size[unit] + chance.normal(0, 0.8, len(unit)))
    mood = chance.beta(4, 1, len(begun))
    score = np.clip(mood[unit] + chance.normal(0, 0.1, len(unit)), 0, 1)
    score[chance.random(len(unit)) > 0.05] = np.nan
    place = chance.random(len(begun))[unit]
    return Day(unit, at.astype(int), bad.astype(float), ttft, cost, score, place)


def sums(unit: Array, second: Array, values: Array, seconds: int) -> Sums:
    """Return the running sums of one arm at the end of each second."""
    if not len(values):
        return Sums(*(np.zeros(seconds) for _ in range(6)))
    new = np.append(True, unit[1:] != unit[:-1])
    start = np.flatnonzero(new)[np.cumsum(new) - 1]
    n = np.arange(len(unit)) - start
    before = np.append(0.0, np.cumsum(values))[:-1]
    s = before - before[start]

    def total(weights: Array) -> Array:
        return np.cumsum(np.bincount(second, weights, seconds))

    return Sums(
        total(new.astype(float)),
        total(np.ones(len(unit))),
        total(values),
        total(2.0 * n + 1),
        total(s + values * (n + 1)),
        total(values * (2 * s + values)),
    )


def arms(one: Day, values: Array, share: float) -> tuple[Sums, Sums]:
    """Return candidate's and control's running sums of some values, without those that are NaN."""
    known, mine = ~np.isnan(values), one.place < share
    return tuple(sums(one.unit[on], one.second[on], values[on], DAY) for on in (known & mine, known & ~mine))  # type: ignore[return-value]


def slow(one: Day, share: float, allowed_s: float, before: Array | None = None) -> Array:
    """Return which first tokens came late: as a Trial says, by what was known of the control until then.

    `before` are the control's times before the step; without them nothing is known until there are a hundred.
    """
    order = np.argsort(one.second, kind="stable")
    control = order[one.place[order] >= share]
    late_after = np.full(len(order), np.nan)
    known, position = np.nan, np.empty(len(order), int)
    position[order] = np.arange(len(order))
    if before is not None:
        late_after[:] = np.quantile(before, 0.95)
    first = [99] if before is None else []
    marks = [mark for mark in (*first, *range(199, len(control), 200)) if mark < len(control)]
    for number, mark in enumerate(marks):
        known = np.quantile(one.ttft[control[max(0, mark - 1999) : mark + 1]], 0.95)
        end = position[control[marks[number + 1]]] if number + 1 < len(marks) else len(order)
        late_after[order[position[control[mark]] + 1 : end + 1]] = known
    allowed = np.where(one.place < share, allowed_s, 0.0)
    return np.where(np.isnan(late_after), np.nan, (one.ttft > late_after + allowed).astype(float))


def taken_back(one: Day, share: float, allowed: dict[str, float], alpha: float, before: Array | None = None) -> str:
    """Return which guard takes the candidate back at any second of the day, or the floor; '' if none does."""
    bar = -math.log(alpha)
    for guard, values, limit, least in (
        ("goodput", one.bad, allowed["goodput"], 1.0),
        ("quality", 1 - one.score, allowed["quality"], 0.0),
        ("ttft_p95", slow(one, share, allowed["ttft_p95"], before), 0.0, 1.0),
    ):
        candidate, control = arms(one, values, share)
        above = candidate.mean > control.mean + limit  # elsewhere all bets lose, so that nothing can be refuted
        logs = log_capital(candidate.take(above), control.take(above), limit, worse=True, least_effect=least)
        if (logs > bar).any():
            return guard
    candidate, control = arms(one, one.cost, share)
    estimate, variance = ratio_difference(candidate, control, 1 + allowed["cost"])
    scale = 3 * max(allowed["cost"], 0.05) * np.maximum(candidate.mean, control.mean)
    enough = (candidate.units >= 30) & (control.units >= 30)
    if (enough & (estimate > mixture_radius(variance, scale, alpha))).any():
        return "cost"
    return "floor" if below_floor(one, share) else ""


def below_floor(one: Day, share: float) -> bool:
    """Return whether any minute that ends with a failure of the candidate is below the floor, as a Trial says."""
    mine = one.place < share
    order = np.argsort(one.second[mine], kind="stable")
    at, bad, unit = (values[mine][order] for values in (one.second, one.bad, one.unit))
    control = arms(one, one.bad, share)[1]
    for end in np.flatnonzero(bad):
        last = np.searchsorted(at, at[end], "right")
        window = slice(np.searchsorted(at, at[end] - 60, "right"), last)
        if bad[window].sum() < 2:
            continue
        units, index = np.unique(unit[window], return_inverse=True)
        failing = (np.bincount(index, bad[window]) / np.bincount(index)).sum()
        if 1 - failing / len(units) >= FLOOR:
            continue
        now, then = at[end], max(0, at[end] - 60)
        rate = max(
            (control.s[now] - control.s[then] + 1) / (control.n[now] - control.n[then] + 2),
            (control.s[now] + 1) / (control.n[now] + 2),
        )
        if floor_chance(failing, len(units), rate):
            return True
    return False


def uneven(one: Day, share: float) -> bool:
    """Return whether the split of the day's conversations looks broken at any second."""
    bad = np.zeros(len(one.unit))
    candidate, control = arms(one, bad, share)
    return bool((split_capital(candidate.units, control.units, share) > -math.log(0.001)).any())


def singles(values: Array, every: int = 1) -> Sums:
    """Return the sums after each request, or every so many, of conversations of one turn."""
    n, s = np.arange(1.0, len(values) + 1)[every - 1 :: every], np.cumsum(values)[every - 1 :: every]
    return Sums(n, n, s, n, s, s)


def needed(chance: np.random.Generator, rate: float, worse: float, allowed: float, share: float, most: int) -> int:
    """Return after how many of its requests a candidate that fails at the rate `worse` is taken back; 0 if never."""
    candidate = singles((chance.random(most) < worse).astype(float))
    others = np.cumsum(chance.binomial(round((1 - share) / share), rate, most)).astype(float)
    n = np.arange(1.0, most + 1) * round((1 - share) / share)
    logs = log_capital(candidate, Sums(n, n, others, n, others, others), allowed, worse=True)
    found = np.flatnonzero(logs > -math.log(ALPHA))
    return int(found[0]) + 1 if len(found) else 0


def oracle(rate: float, worse: float, allowed: float, share: float) -> float:
    """Return the candidate's requests that a fixed sample needs to see this fall, with the errors of `needed`.

    It knows both rates, tests at ALPHA whether the candidate is worse than what is allowed, and sees this fall with
    probability SURE. Its control is as many times larger as the share says.
    """
    z = NormalDist().inv_cdf
    others = share / (1 - share) * rate * (1 - rate)
    border = math.sqrt((rate + allowed) * (1 - rate - allowed) + others)
    truth = math.sqrt(worse * (1 - worse) + others)
    return ((z(1 - ALPHA) * border + z(SURE) * truth) / (worse - rate - allowed)) ** 2


def talks(chance: np.random.Generator, count: int, hard: float, seconds: int) -> tuple[Array, Array, Array]:
    """Return unit, second and failures of so many conversations of 1 to 20 turns; those that are `hard` fail more."""
    turns = np.where(chance.random(count) < 0.4, 1, chance.integers(1, 21, count))
    unit = np.repeat(np.arange(count), turns)
    waits = chance.exponential(25.0, len(unit))
    first = np.cumsum(turns) - turns
    waits[first] = 0.0
    passed = np.cumsum(waits)
    second = ((np.sort(chance.random(count)) * seconds)[unit] + passed - passed[first][unit]).astype(int)
    bad = chance.random(len(unit)) < np.where((chance.random(count) < hard)[unit], 0.12, 0.006)
    keep = second < seconds
    return unit[keep], second[keep], bad[keep].astype(float)


def fall_of_talks(runs: int, seed: int) -> Iterator[Line]:
    """Print what a fall of 5% takes where the requests of a conversation fail alike."""
    chance, seconds, count, times = np.random.default_rng(seed), 40_000, 2_000, 10
    hard = {"control": 0.125, "candidate": 0.125 + 0.05 / 0.114}
    rates, effects = {}, {}
    for name, share in hard.items():
        unit, _, bad = talks(chance, 300_000, share, 10**9)
        rates[name] = rate = bad.mean()
        size = np.bincount(unit)
        spread = (np.bincount(unit, bad) - rate * size).var() * len(size) / len(unit)
        effects[name] = spread / (rate * (1 - rate))
    z, others = NormalDist().inv_cdf, effects["control"] * rates["control"] * (1 - rates["control"]) / times
    edge = rates["control"] + 0.01
    spreads = [effects["control"] * edge * (1 - edge) + others]
    spreads.append(effects["candidate"] * rates["candidate"] * (1 - rates["candidate"]) + others)
    best = (z(1 - ALPHA) * math.sqrt(spreads[0]) + z(SURE) * math.sqrt(spreads[1])) ** 2
    best /= (rates["candidate"] - edge) ** 2
    took, missed = [], 0
    for _ in range(runs):
        candidate = sums(*talks(chance, count, hard["candidate"], seconds), seconds)
        control = sums(*talks(chance, count * times, hard["control"], seconds), seconds)
        found = np.flatnonzero(log_capital(candidate, control, 0.01, worse=True) > -math.log(ALPHA))
        missed += not len(found)
        took.append(float(candidate.n[found[0] if len(found) else -1]))
    ratios = np.array(took) / best
    error = 1.96 * ratios.std(ddof=1) / math.sqrt(runs)
    yield (
        f"fall      the same, conversations of 1 to 20 turns (design effect {effects['control']:.1f}, "
        f"{effects['candidate']:.1f}), share {1 / (times + 1):.0%}: median {np.median(took):.0f} requests, mean "
        f"{np.mean(took):.0f}; oracle {best:.0f}: mean ratio {ratios.mean():.2f} "
        f"({ratios.mean() - error:.2f}-{ratios.mean() + error:.2f}; at most {MOST_OF_ORACLE}), "
        f"never {missed} of {runs}",
        ratios.mean() <= MOST_OF_ORACLE and not missed,
    )


def passing(runs: int, seed: int) -> Iterator[Line]:
    """Print after how many requests a step passes, and how often it does so wrongly."""
    chance, share, most = np.random.default_rng(seed), 0.05, 20_000
    for rate, worse in ((0.02, 0.02), (0.02, 0.03)):
        took = []
        for _ in range(runs):
            others = np.cumsum(chance.binomial(19, rate, most)).astype(float)
            n = np.arange(1.0, most + 1) * 19
            candidate = singles((chance.random(most) < worse).astype(float))
            logs = log_capital(candidate, Sums(n, n, others, n, others, others), 0.01, worse=False)
            found = np.flatnonzero(logs > -math.log(1 - SURE))
            took.append(found[0] + 1 if len(found) else math.inf)
        passed = int(np.isfinite(took).sum())
        low, high = interval(passed, runs)
        what = f"goodput {1 - rate:.0%} and {1 - worse:.0%}, -1% allowed, share {share:.0%}: shown to be within"
        if worse == rate:
            yield f"passing   {what} after median {np.median(took):.0f} of its requests", True
        else:
            yield (
                f"passing   {what} at any of {most} looks in {passed / runs:.1%} ({low:.1%}-{high:.1%}; at most "
                f"{1 - SURE:.0%})",
                low <= 1 - SURE,
            )


def interval(hits: int, of: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share."""
    z = 1.96
    centre, spread = hits + z * z / 2, z * math.sqrt(hits * (of - hits) / of + z * z / 4)
    return (centre - spread) / (of + z * z), (centre + spread) / (of + z * z)


def fall(runs: int, seed: int) -> Iterator[Line]:
    """Print what a fall of 5% takes."""
    for rate, share in ((0.02, 0.01), (0.02, 0.25), (0.05, 0.01)):
        chance = np.random.default_rng(seed)
        took = np.array([needed(chance, rate, rate + 0.05, 0.01, share, 6000) for _ in range(runs)])
        missed, best = int((took == 0).sum()), oracle(rate, rate + 0.05, 0.01, share)
        ratios = took[took > 0] / best
        error = 1.96 * ratios.std(ddof=1) / math.sqrt(len(ratios))
        yield (
            f"fall      goodput {1 - rate:.0%} to {0.95 - rate:.0%}, share {share:.0%}: median {np.median(took):.0f} "
            f"requests, mean {took.mean():.0f}; oracle {best:.0f}: mean ratio {ratios.mean():.2f} "
            f"({ratios.mean() - error:.2f}-{ratios.mean() + error:.2f}; at most {MOST_OF_ORACLE}), "
            f"never {missed} of {runs}",
            ratios.mean() <= MOST_OF_ORACLE and not missed,
        )
    yield from fall_of_talks(runs, seed)


def late_needed(
    chance: np.random.Generator, later_s: float, share: float, seconds: int, pace: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return after how many of its requests and seconds a candidate that is so much later is taken back; 0 if never.

    First with the control's percentile from before the step, then from its first hundred requests, on one traffic.
    """
    count = seconds * pace
    place, ttft = chance.random(count), 0.3 * np.exp(chance.normal(0, 0.5, count))
    ttft[place < share] += later_s
    one = Day(np.arange(count), np.arange(count) // pace, ttft, ttft, ttft, ttft, place)
    found = []
    for before in (0.3 * np.exp(chance.normal(0, 0.5, 1000)), None):
        values = slow(one, share, 0.05, before)
        known, mine = ~np.isnan(values), place < share
        candidate, control = (
            sums(one.unit[on], one.second[on], values[on], seconds) for on in (known & mine, known & ~mine)
        )
        at = np.flatnonzero(log_capital(candidate, control, 0.0, worse=True) > -math.log(ALPHA))
        found.append((int(mine[: (at[0] + 1) * pace].sum()), int(at[0]) + 1) if len(at) else (0, 0))
    return found[0], found[1]


def late(runs: int, seed: int) -> Iterator[Line]:
    """Print what first tokens that come later take."""
    pace = 20
    for share, later_s in ((0.05, 0.15), (0.05, 0.3), (0.25, 0.15), (0.25, 0.3)):
        chance, seconds = np.random.default_rng(seed), 6000 if share < 0.1 else 1500
        took = np.array([late_needed(chance, later_s, share, seconds, pace) for _ in range(runs)])
        border = 0.3 * math.exp(0.5 * NormalDist().inv_cdf(0.95)) + 0.05
        worse = 1 - NormalDist().cdf(math.log((border - later_s) / 0.3) / 0.5)
        best, (new, old) = oracle(0.05, worse, 0.0, share), (took[:, 0], took[:, 1])
        error = 1.96 * new[:, 0].std(ddof=1) / best / math.sqrt(runs)
        gain = new[:, 0] - old[:, 0]
        gain_error = 1.96 * gain.std(ddof=1) / math.sqrt(runs)
        missed, ratio = int((new[:, 0] == 0).sum()), new[:, 0].mean() / best
        what = f"first tokens +{later_s * 1000:.0f} ms, share {share:.0%}, {pace} requests/s"
        now = f"mean {new[:, 0].mean():.0f} requests, median {np.median(new[:, 1]):.0f} s"
        before = f"mean {old[:, 0].mean():.0f}, median {np.median(old[:, 1]):.0f} s"
        yield (
            f"late      {what}: {now}; oracle {best:.0f}: mean ratio {ratio:.2f} ({ratio - error:.2f}-"
            f"{ratio + error:.2f}; at most {MOST_OF_ORACLE}), never {missed} of {runs}; with the percentile of the "
            f"step's own first hundred {before}: difference {gain.mean():+.0f} ({gain.mean() - gain_error:+.0f} to "
            f"{gain.mean() + gain_error:+.0f})",
            ratio <= MOST_OF_ORACLE and not missed,
        )


def collapse(runs: int, seed: int) -> Iterator[Line]:
    """Print what a fall of 30% takes at some paces."""
    for pace in (30, STATED_PACE, 300):
        chance, seconds, met = np.random.default_rng(seed), [], []
        for _ in range(runs):
            requests = needed(chance, 0.02, 0.32, 0.01, 0.01, 2000)
            at = np.cumsum(chance.exponential(1 / (pace * 0.01), 4000))
            back = math.ceil(at[requests - 1] + _LAG_S)
            seconds.append(back)
            met.append(np.searchsorted(at, min(back, 60)) / chance.poisson(pace * 60))
        yield (
            f"collapse  goodput 98% to 68% at 1%, {pace} conversations/s: back after median "
            f"{np.median(seconds):.0f} s, 95% within {np.quantile(seconds, 0.95):.0f} s; "
            f"met by {np.mean(met):.2%} of the first minute's users (at most {MOST_SECONDS:.0f} s, {MOST_USERS:.1%})",
            pace < STATED_PACE or (np.quantile(seconds, 0.95) <= MOST_SECONDS and np.mean(met) <= MOST_USERS),
        )


def harmless(runs: int, seed: int, say: Callable[[str], None]) -> Iterator[Line]:
    """Print how often a candidate that is the control is taken back in a day at 5%."""
    allowed = {"goodput": 0.01, "quality": 0.02, "ttft_p95": 0.05, "cost": 0.1}
    yield from _alike("harmless", runs, seed, allowed, say)


def border(runs: int, seed: int, say: Callable[[str], None]) -> Iterator[Line]:
    """Print the same where nothing is allowed."""
    allowed = dict.fromkeys(("goodput", "quality", "ttft_p95", "cost"), 0.0)
    yield from _alike("border", runs, seed, allowed, say)


def _alike(name: str, runs: int, seed: int, allowed: dict[str, float], say: Callable[[str], None]) -> Iterator[Line]:
    chance, why, split, requests = np.random.default_rng(seed), [], 0, 0
    began = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):  # the figures of the days that are done are printed all the same
        for run in range(runs):
            one = day(chance)
            before = 0.3 * np.exp(chance.normal(0, 0.35, 1000) + chance.normal(0, 0.5, 1000))
            back, off = taken_back(one, SHARE, allowed, (1 - SURE) / GUARDS, before), uneven(one, SHARE)
            requests, split = requests + len(one.unit), split + off
            why.append(back)
            if (run + 1) % 20 == 0:
                done = f"{sum(map(bool, why))} taken back, {time.monotonic() - began:.0f} s"
                say(f"{name}: {run + 1} of {runs} days, {done}")
    runs = max(1, len(why))
    taken = sum(map(bool, why))
    low, high = interval(taken, runs)
    by = ", ".join(f"{guard} {why.count(guard)}" for guard in sorted(set(why) - {""})) or "none"
    low_split, high_split = interval(split, runs)
    yield (
        f"{name:9} {runs} days of {requests // runs} requests, {DAY} looks each: taken back {taken / runs:.1%} "
        f"({low:.1%}-{high:.1%}; {by}); split called uneven {split / runs:.1%} ({low_split:.1%}-{high_split:.1%}); "
        f"at most {MOST_BACK:.0%}",
        taken / runs <= MOST_BACK,
    )


@dataclass(frozen=True)
class Spoken:
    """What a judge and people say in one run: how many answers there are, and of which share each speaks."""

    worse: float
    """By how much the candidate's answers are worse."""
    judged: float
    rated: float = 0.03
    answers: int = 12_000
    share: float = 0.25


def back_by_quality(chance: np.random.Generator, one: Spoken, looks: int, allowed: float) -> int:
    """Return after how many answers of both arms the quality guard takes the candidate back; 0 if it never does.

    Conversations of one to six turns differ in how good their answers are; the judge takes three wrong answers in ten
    for right.
    """
    rollout = Rollout.model_validate({"steps": [one.share], "guard": {"quality": f"-{100 * allowed:g}%"}})
    learn = Learn(judge="judge") if one.judged else None
    trial = Trial(rollout, one.share, 0.0, 0.0, {"candidate": learn, "control": learn})
    turns = chance.integers(1, 7, one.answers)
    unit = np.repeat(np.arange(one.answers), turns)[: one.answers]
    mine = chance.random(one.answers) < one.share
    good = chance.beta(6, 2, one.answers)
    right = chance.random(one.answers) < good[unit] - one.worse * mine[unit]
    kind = right | (chance.random(one.answers) < 0.3)
    rated, judged = chance.random(one.answers) < one.rated, chance.random(one.answers) < one.judged
    ends = np.linspace(0, one.answers, looks + 1).astype(int)
    for begin, end in itertools.pairwise(ends.tolist()):
        for at in range(begin, end):
            arm = "candidate" if mine[unit[at]] else "control"
            row = {"arm": arm, "unit": f"{arm} {unit[at]}", "tenant": "acme", "request_id": str(at)}
            more = {
                "status": 200,
                "path": "direct",
                "error": None,
                "ttft_ms": None,
                "total_ms": 1.0,
                "cost_usd": 0.0,
                "slo": {},
            }
            trial.add({**row, **more}, 0.0)
            if rated[at]:
                trial.rate("acme", str(at), float(right[at]))
            if judged[at]:
                trial.judge("acme", str(at), float(kind[at]))
        if trial.verdict(0.0).guards[0].state == "crossed":
            return end
    return 0


def judged(runs: int, seed: int) -> Iterator[Line]:
    """Print what a judge's labels add to the quality guard."""
    for rated, share in ((0.03, 0.0), (0.03, 0.2), (0.0, 0.2)):
        chance = np.random.default_rng(seed)
        who = f"feedback on {rated:.0%}, a judge on {share:.0%} of 12,000 answers"
        alike = Spoken(0.0, share, rated)
        wrong = sum(bool(back_by_quality(chance, alike, 40, 0.0)) for _ in range(runs))
        low, high = interval(wrong, runs)
        yield (
            f"judged    {who}: a candidate like the control, where nothing is allowed, is taken back at any of 40 "
            f"looks in {wrong / runs:.1%} ({low:.1%}-{high:.1%}; at most {1 - SURE:.0%})",
            low <= 1 - SURE,
        )
        worse = Spoken(0.25, share, rated)
        took = [back_by_quality(chance, worse, 40, 0.02) for _ in range(runs)]
        found = np.array([one or math.inf for one in took])
        low, high = interval(sum(map(bool, took)), runs)
        yield (
            f"judged    {who}, 25 points worse where 2 are allowed: taken back in {np.isfinite(found).mean():.1%} "
            f"({low:.1%}-{high:.1%}), after median {np.median(found):.0f} answers",
            True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and print their figures with 95% intervals."""
    parser = bench_parser("canary", __doc__)
    parser.add_argument("--runs", type=int, default=1000, metavar="N", help="runs of each part (default: 1000)")
    parser.add_argument("--seed", type=int, default=20_000, metavar="N", help="seed of all random numbers")
    parts: dict[str, Any] = {one.__name__: one for one in (fall, late, collapse, passing, judged, harmless, border)}
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="these parts only")
    asked = parser.parse_args(arguments)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    missed = False
    for name in asked.only:
        told = (say,) if name in ("harmless", "border") else ()
        for line, met in parts[name](asked.runs, asked.seed, *told):
            print(line if met else f"{line}  MISSED", flush=True)
            missed = missed or not met
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
