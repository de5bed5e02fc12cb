"""Judge one step of a canary: keep the running figures of both arms, and say when they are clear.

A `Trial` is told every finished request of the surface, and every rating, since the step began; `verdict` may be asked
as often as one likes. It knows no store and no clock. Each guard compares candidate minus control over the requests of
the same time:

    goodput    good requests (`gateway.telemetry.ledger`: within every limit, neither degraded nor with a fault in
               their structure); not those that the client broke off, that were wrong themselves or over a limit of
               their owners
    quality    people's ratings and a judge's labels of the answers, 0 to 1, as `arm_opinions` has it
    ttft_p95   first tokens that came later than the control's 95th percentile, for the candidate plus what is allowed:
               crossed when they are more than the control's own, within when they are fewer. Until the step has some
               hundreds of its own, the percentile is that of the control before it, so that the first request counts;
               both arms are held against one time, so a change of all traffic does not make them differ. Whether a
               95th percentile has risen beyond a limit shows in no more than the share beyond it.
    cost       US dollars per request, the calls for nothing included
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from gateway.parts.measures.endings import was_good
from gateway.parts.measures.quality import Opinions
from gateway.parts.rollout.arm_opinions import ArmOpinions, Key, poor_sums
from gateway.parts.rollout.policy import CANDIDATE, CONTROL
from gateway.parts.rollout.sequential import (
    COST,
    FEWEST_COSTS,
    FEWEST_UNITS,
    QUALITY,
    SLOW,
    GuardTest,
    Sums,
    split_capital,
)
from policies.quantities import dollars, milliseconds, percent, period

if TYPE_CHECKING:
    from gateway.parts.measures.quality import Opinions, Word
    from gateway.parts.rollout.policy import Learn, Rollout

Move = Literal["wait", "pass", "pause", "rollback"]
State = Literal["crossed", "within", "open"]

SETTLE_S: Final = 3.0
"""A request that started so soon after the step may have met a worker that had not followed yet: it does not count."""
_MOST_UNITS: Final = 200_000
_MINUTE_S: Final = 60.0
_FLOOR_CHANCE: Final = 1e-6
"""The floor is crossed only where chance alone, at the control's rate, would do so less often than this."""
_SILENT_S: Final = 30.0
_SILENT_CHANCE: Final = 1e-9
_UNEVEN_ALPHA: Final = 0.001
_LATE_S: Final = 120.0
"""Units are counted for the split once they started so long ago: one arm may be the slower to finish."""
_FIRST_TTFTS: Final = 100
_TTFTS: Final = 2000
_TTFT_EVERY: Final = 200
_REQUESTS: Final = 100_000
_EARLY: Final = 10_000
_P95: Final = 0.95

_BAD: Final = "goodput"


@dataclass(frozen=True, slots=True)
class GuardFigures:
    """What is known on one guard. `difference`, `low`, `high` and `allowed` are candidate minus control.

    They are shares, for cost relative to the control's; for `ttft_p95` shares of first tokens that came late, while
    `candidate` and `control` are the 95th percentiles in seconds. `low` and `high` hold at all times together with the
    certainty that the policy asks for.
    """

    guard: str
    state: State
    allowed: float
    difference: float | None
    low: float | None
    high: float | None
    candidate: float | None
    control: float | None
    n_candidate: int
    n_control: int
    decided_in_s: float | None
    """Seconds until it is decided, if all goes on as until now; None if that cannot be said."""
    word: str = ""
    """For quality whose word the figures are: `people` or `judge`."""
    missing: str = ""
    """What there is nothing of, without which this is never decided, and what to do about it."""
    waits_for: str = ""
    """What it needs before the arms can be compared; '' once they can."""
    allowed_s: float | None = None
    """Of `ttft_p95`, by how many seconds the candidate's may be later."""

    def change(self) -> str:
        """Say the difference with its bounds; for costs where the control's is 0, the two amounts."""
        if self.difference is None or self.low is None or self.high is None:
            return f"{dollars(self.candidate or 0)} a request against {dollars(self.control or 0)}"
        difference, low, high = (percent(value, signed=True) for value in (self.difference, self.low, self.high))
        return f"{difference}, between {low} and {high}"


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """What to do with a candidate now, and why; `guards` are the figures that this rests on."""

    move: Move
    reason: str
    guards: tuple[GuardFigures, ...]
    units: Mapping[str, int]
    """Sticky units seen, by arm."""
    requests: Mapping[str, int]
    elapsed_s: float

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)


class _Arm:
    """The running figures of one arm: sums over units by measure, and the latest times to the first token."""

    def __init__(self) -> None:
        self.sums = {name: Sums() for name in (_BAD, SLOW, COST)}
        self.opinions = ArmOpinions()
        self.units: dict[str, dict[str, tuple[float, float]]] = {}
        self.seen = 0
        self.requests = 0
        self.ttfts: deque[float] = deque(maxlen=_TTFTS)

    def touch(self, unit: str) -> bool:
        """Note a request of this unit; return whether it is its first. The longest unseen units are forgotten."""
        unit_seen = self.units.pop(unit, None)
        self.units[unit] = {} if unit_seen is None else unit_seen
        self.requests += 1
        if unit_seen is not None:
            return False
        self.seen += 1
        if len(self.units) > _MOST_UNITS:
            del self.units[next(iter(self.units))]
        return True

    def add(self, unit: str, measure: str, value: float) -> None:
        """Count one value of a request of this unit."""
        measures = self.units.setdefault(unit, {})
        n, s = measures.get(measure, (0.0, 0.0))
        self.sums[measure].add(n, s, value)
        measures[measure] = n + 1, s + value

    def p95(self) -> float | None:
        """Return the 95th percentile of the latest times to the first token, in seconds; None with too few."""
        return float(np.quantile(list(self.ttfts), _P95)) if len(self.ttfts) >= _FIRST_TTFTS else None


class Trial:
    """The figures of one step since it began, and the verdict on them."""

    def __init__(
        self,
        rollout: Rollout,
        share: float,
        since: float,
        settle_s: float = SETTLE_S,
        learn: Mapping[str, Learn | None] | None = None,
        before: Sequence[float] = (),
    ) -> None:
        """Judge a step with this share of the units, begun at `since` in Unix seconds.

        `learn` are the sections of both arms' policies, None where there is none: they say who labels answers. `before`
        has the latest times to the first token under the policy in force before the step, in seconds.
        """
        self.since = since
        self._from = since + settle_s
        self._rollout = rollout
        self._share = share
        self._arms = {CANDIDATE: _Arm(), CONTROL: _Arm()}
        enough = len(before) >= _FIRST_TTFTS
        self._slow_after: float | None = float(np.quantile(before, _P95)) if enough else None
        self._ttfts_seen = 0
        self._minute: deque[tuple[float, str, str, float]] = deque()
        self._pending: deque[tuple[float, str]] = deque()
        self._split = {CANDIDATE: 0, CONTROL: 0}
        self._heard = since
        self._since_heard: set[str] = set()
        self._requests: dict[Key, tuple[str, str]] = {}
        """Arm and unit of the latest requests."""
        self._early: dict[Key, dict[str, float]] = {}
        """What was said of requests whose record has not come yet, or that are none of this step's."""
        self._learn = {name: (learn or {}).get(name) for name in (CANDIDATE, CONTROL)}
        guards = [name for name in (_BAD, QUALITY, SLOW, COST) if getattr(rollout.guard, name) is not None]
        self._guards = tuple(guards)
        self._alpha_within = 1 - rollout.sure
        # All guards and all steps together take a harmless candidate back with probability 1 - sure at most.
        self._alpha = self._alpha_within / max(1, len(guards)) / len(rollout.steps)

    def add(self, ledger: Mapping[str, Any], started: float) -> None:
        """Count a finished request: its ledger as in its record, and its start in Unix seconds."""
        name = ledger["arm"]
        if name not in self._arms or started < self._from:
            return
        arm, unit, ended = self._arms[name], ledger["unit"], started + ledger["total_ms"] / 1000
        if arm.touch(unit):
            self._pending.append((started, name))
        if name == CANDIDATE:
            self._heard = max(self._heard, ended)
            self._since_heard.clear()
        else:
            self._since_heard.add(unit)
        key = ledger["tenant"], ledger["request_id"]
        self._requests[key] = name, unit
        if len(self._requests) > _REQUESTS:
            del self._requests[next(iter(self._requests))]
        if (said := self._early.pop(key, None)) is not None:
            arm.opinions.say(key, unit, **said)
        if not ledger.get("cost_unknown"):  # an unknown cost is not one of 0
            arm.add(unit, COST, ledger["cost_usd"])
        if (good := was_good(ledger)) is not None:
            bad = float(not good)
            arm.add(unit, _BAD, bad)
            self._minute.append((ended, name, unit, bad))
        if (ttft_s := ttft_of(ledger)) is not None:
            self._add_ttft(arm, unit, ttft_s, name)

    def rate(self, tenant: str, request_id: str, score: float) -> None:
        """Count a person's rating, 0 to 1, of a request of this step, the last of each; others are left out."""
        self._say((tenant, request_id), people=min(max(score, 0.0), 1.0))

    def judge(self, tenant: str, request_id: str, adequate: float) -> None:
        """Count a judge's label, 0 to 1, of the answer to a request of this step; others are left out."""
        self._say((tenant, request_id), judge=adequate)

    def _say(self, key: Key, **said: float) -> None:
        request = self._requests.get(key)
        if request is not None:
            self._arms[request[0]].opinions.say(key, request[1], **said)
            return
        self._early[key] = self._early.pop(key, {}) | said
        if len(self._early) > _EARLY:
            del self._early[next(iter(self._early))]

    def verdict(self, now: float) -> TrialVerdict:
        """Return what to do at `now`, in Unix seconds, not before any request that was told."""
        guards = tuple(self._figures(name, now) for name in self._guards)
        move, reason = self._move(now, guards)
        return TrialVerdict(
            move,
            reason,
            guards,
            {name: arm.seen for name, arm in self._arms.items()},
            {name: arm.requests for name, arm in self._arms.items()},
            now - self.since,
        )

    def _move(self, now: float, guards: tuple[GuardFigures, ...]) -> tuple[Move, str]:
        if reason := self._below_floor(now) or self._silent(now) or next(_crossed(guards), ""):
            return "rollback", reason
        if reason := self._uneven(now):
            return "pause", reason
        elapsed = now - self.since
        candidate = self._arms[CANDIDATE]
        if elapsed >= self._rollout.step_min and candidate.seen >= FEWEST_UNITS:
            open_guards = [guard.guard for guard in guards if guard.state != "within"]
            if not open_guards:
                held = ", ".join(self._guards) or "no guards"
                return "pass", f"within its limits: {held}; {candidate.seen} units, {candidate.requests} requests"
        if elapsed >= self._rollout.step_max:
            undecided = [
                f"{one.guard} ({one.missing})" if one.missing else one.guard for one in guards if one.state == "open"
            ] or ["units of the candidate"]
            moves: dict[str, Move] = {"pause": "pause", "promote": "pass", "rollback": "rollback"}
            return moves[self._rollout.undecided], f"undecided after {period(elapsed)}: {', '.join(undecided)}"
        return "wait", ""

    def _add_ttft(self, arm: _Arm, unit: str, ttft_s: float, name: str) -> None:
        """Count a time to the first token. What is slow is known from earlier requests of the control alone."""
        if self._slow_after is not None:
            allowed = (self._rollout.guard.ttft_p95 or 0.0) if name == CANDIDATE else 0.0
            arm.add(unit, SLOW, float(ttft_s > self._slow_after + allowed))
        arm.ttfts.append(ttft_s)
        if name == CONTROL:
            self._ttfts_seen += 1
            first = self._slow_after is None and self._ttfts_seen == _FIRST_TTFTS
            if first or self._ttfts_seen % _TTFT_EVERY == 0:
                self._slow_after = arm.p95()

    def _figures(self, guard: str, now: float) -> GuardFigures:
        word: Word | None = None
        missing, alpha, alpha_within = "", self._alpha, self._alpha_within
        if guard == QUALITY:
            opinions = [self._arms[name].opinions.opinions() for name in (CANDIDATE, CONTROL)]
            word = Opinions.common_word(opinions)
            candidate, control = (Sums() if word is None else poor_sums(arm, word) for arm in opinions)
            missing = self._missing(opinions) if word is None else ""
            if all(self._learn.values()):  # the judge's word may come first and people's later: two tests in turn
                alpha, alpha_within = alpha / 2, alpha_within / 2
        else:
            candidate, control = self._arms[CANDIDATE].sums[guard], self._arms[CONTROL].sums[guard]
        test = GuardTest(guard, abs(float(getattr(self._rollout.guard, guard))))
        worse = test.proof(candidate, control, alpha, worse=True)
        within = test.proof(candidate, control, alpha_within, worse=False)
        low, high = test.bounds(candidate, control, alpha, alpha_within)
        of_candidate = float(candidate.mean) if candidate.n else None
        of_control = float(control.mean) if control.n else None
        difference = None if of_candidate is None or of_control is None else of_candidate - of_control
        allowed = float(getattr(self._rollout.guard, guard))
        if guard == COST:
            difference = of_candidate / of_control - 1 if of_candidate is not None and of_control else None
        elif guard == SLOW:
            allowed, of_candidate, of_control = 0.0, self._arms[CANDIDATE].p95(), self._arms[CONTROL].p95()
        else:  # shown as what is good
            low, high, difference = (None if value is None else -value for value in (high, low, difference))
            of_candidate, of_control = (None if value is None else 1 - value for value in (of_candidate, of_control))
        return GuardFigures(
            guard,
            "crossed" if worse > 1 else "within" if within > 1 else "open",
            allowed,
            difference,
            low,
            high,
            of_candidate,
            of_control,
            int(candidate.n),
            int(control.n),
            self._left(max(worse, within), now),
            word or "",
            missing,
            "" if test.can_compare(candidate, control) else self._needs(guard, candidate, control),
            self._rollout.guard.ttft_p95 if guard == SLOW else None,
        )

    def _missing(self, opinions: Sequence[Opinions]) -> str:
        """Return what lacks for a comparison of quality, and what to do about it."""
        labelled = [name for name, learn in self._learn.items() if learn is not None]
        people = ", or send feedback to POST /v1/feedback"
        if not labelled:
            of = "no feedback" if not any(len(arm) for arm in opinions) else "feedback on one arm's answers alone"
            return f"{of}, and no judge labels answers: give both policies a `learn` section{people}"
        if len(labelled) == 1:
            other = "policy in force" if labelled == [CANDIDATE] else "candidate"
            what = f"give the {other} a `learn` section too, and two tiers"
            return f"a judge labels the {labelled[0]}'s answers alone: {what}{people}"
        shares = [learn.share for learn in self._learn.values() if learn is not None]
        silent = [name for name, arm in zip(self._learn, opinions, strict=True) if not len(arm)]
        whose = "either arm's" if len(silent) != 1 else f"the {silent[0]}'s"
        return (
            f"neither feedback nor a judge's label of {whose} answers yet: `learn.share` is {min(shares):.3g} of the "
            f"fresh answers; raise it{people}. tierline_learn_comparisons_total says what became of comparisons"
        )

    def _needs(self, guard: str, candidate: Sums, control: Sums) -> str:
        """Return what a guard lacks before its arms can be compared."""
        if guard == SLOW and self._slow_after is None:
            return f"the control's 95th percentile: {self._ttfts_seen} of {_FIRST_TTFTS} first tokens"
        what = {QUALITY: "ratings or labels", COST: "requests"}.get(guard, "outcomes")
        fewest = (FEWEST_COSTS, FEWEST_COSTS) if guard == COST else (FEWEST_UNITS, 1)
        counts = (
            f"{min(int(sums.units), need)} of {need} {name}"
            for name, sums, need in zip((CANDIDATE, CONTROL), (candidate, control), fewest, strict=True)
        )
        return f"{what} of more units: {', '.join(counts)}"

    def _left(self, progress: float, now: float) -> float | None:
        if progress >= 1:
            return 0.0
        return (now - self.since) * (1 / progress - 1) if progress > 0.02 else None

    def _below_floor(self, now: float) -> str:
        """Return why the last minute was below the floor, if it was.

        A unit counts as one trial, by the part of its requests that failed. With the control's rate of failures q, so
        many failing units must be so rare that chance does not make them within a day of looking.
        """
        while self._minute and self._minute[0][0] < now - _MINUTE_S:
            self._minute.popleft()
        floor = self._rollout.floor.goodput
        if floor is None:
            return ""
        control = [bad for _, name, _, bad in self._minute if name == CONTROL]
        by_unit: dict[str, list[float]] = {}
        for _, name, unit, bad in self._minute:
            if name == CANDIDATE:
                by_unit.setdefault(unit, []).append(bad)
        failing = sum(sum(bad) / len(bad) for bad in by_unit.values())
        if len(by_unit) < FEWEST_UNITS or 1 - failing / len(by_unit) >= floor:
            return ""
        whole = self._arms[CONTROL].sums[_BAD]
        rate = max((sum(control) + 1) / (len(control) + 2), (whole.s + 1) / (whole.n + 2))
        if not floor_chance(failing, len(by_unit), float(rate)):
            return ""
        share = 1 - failing / len(by_unit)
        least = percent(floor, 0)
        return f"goodput {percent(share, 0)} in the last minute, below the floor of {least} ({len(by_unit)} units)"

    def _silent(self, now: float) -> str:
        """Return that no outcome of the candidate came, where chance cannot be the reason."""
        silent_s = now - self._heard
        units = len(self._since_heard)
        if silent_s < _SILENT_S or units * math.log1p(-self._share) > math.log(_SILENT_CHANCE):
            return ""
        return f"no outcome of the candidate for {silent_s:.0f} s, while the control had {units} units"

    def _uneven(self, now: float) -> str:
        """Return that the units do not come in the step's share: then the split is broken, or records are lost."""
        while self._pending and self._pending[0][0] <= now - _LATE_S:
            self._split[self._pending.popleft()[1]] += 1
        candidate, control = self._split[CANDIDATE], self._split[CONTROL]
        if split_capital(candidate, control, self._share) <= -math.log(_UNEVEN_ALPHA):
            return ""
        seen = candidate / (candidate + control)
        split, drawn = percent(seen, 2), percent(self._share, 2)
        return f"uneven split: {candidate} of {candidate + control} units ({split}) instead of {drawn}"


def ttft_of(ledger: Mapping[str, Any]) -> float | None:
    """Return a request's time to the first token in seconds; None where none came, or the answer was no success."""
    if ledger["status"] != 200 or ledger["error"] is not None or ledger["ttft_ms"] is None:
        return None
    return float(ledger["ttft_ms"]) / 1000


def _crossed(guards: tuple[GuardFigures, ...]) -> Iterator[str]:
    for guard in guards:
        if guard.state == "crossed":
            what, allowed = guard.guard, percent(guard.allowed, signed=True)
            if guard.allowed_s is not None:
                what, allowed = "ttft_p95: late first tokens", milliseconds(guard.allowed_s * 1000, signed=True)
            what = f"{what} {guard.change()}; allowed {allowed}"
            yield f"{what}, {guard.n_candidate} requests against {guard.n_control}"


def floor_chance(failing: float, units: int, rate: float) -> bool:
    """Return whether so many failing units are too rare to be chance, where each fails at this rate."""
    odds, count = math.log(rate) - math.log1p(-rate), math.floor(failing)
    ways = (
        math.lgamma(units + 1) - math.lgamma(k + 1) - math.lgamma(units - k + 1) + k * odds
        for k in range(count, units + 1)
    )
    return units >= FEWEST_UNITS and math.fsum(math.exp(w + units * math.log1p(-rate)) for w in ways) < _FLOOR_CHANCE
