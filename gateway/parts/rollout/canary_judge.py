"""Judge the candidates of all surfaces, once a second, in a process of its own: `tierline policy judge`.

Only one judge is at work: it holds a key of the store that expires 10 seconds after it was last renewed. The key is its
pulse too: without it no worker assigns requests to a candidate, and a judge that begins after a silence takes back each
candidate that was served meanwhile. The judge reads the finished requests, the ratings and a model's labels from the
store's streams, tells them to the `Trial` of their surface, carries out its verdict through the registry, and stores a
report (`report`). What is only evaluated is decided here too (`evaluation`), and what ran as a shadow is summed up
(`shadow_figures`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from cache.store.base import Command, Store, StoreUnavailable
from gateway.parts.measures import feedback, label
from gateway.parts.recorder.decision_record import BASES
from gateway.parts.rollout.evaluation import Evaluation
from gateway.parts.rollout.policy import CANDIDATE, CONTROL, Learn, Rollout, RolloutSections
from gateway.parts.rollout.registry.records import JUDGE, InForce, Rolling, Version
from gateway.parts.rollout.registry.registry import PolicyRegistry, RegistryConflict, RegistryError
from gateway.parts.rollout.report import canary_report, details_of, evaluation_report, shadow_report
from gateway.parts.rollout.shadow_figures import ShadowFigures
from gateway.parts.rollout.trial import SETTLE_S, Trial, ttft_of
from gateway.telemetry.ledger import SHADOW, TRACES, is_record
from policies.errors import ConfigError
from policies.model import Rules
from policies.quantities import write_share

BY: Final = "tierline"
"""Who makes the judge's changes, in the audit trail."""
_JUDGED: Final = "tierline:{policies}:judged"
"""Key of the Unix seconds at which a judge was last at work. It does not expire."""
PULSE_S: Final = 10.0
_LOOK_S: Final = 1.0
_PAGE: Final = 200
_ENOUGH_BEFORE: Final = 1000
"""So many of the control's first tokens before a step give its 95th percentile: more would be of too long ago."""
_MOST_BEFORE: Final = 4000
"""Most requests before a step, of all surfaces, that are read for them."""
_LIMIT_S: Final = 5.0
# KEYS: lease, judged. ARGV: holder, lifetime in ms, now. Returns 1 and when a judge was last at work (false: never), or
# 0 and who has the lease.
_HOLD: Final = Path(__file__).with_name("hold_lease.lua").read_bytes()
_RELEASE: Final = b"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

Say = Callable[[str], None]
Earlier = Callable[[float], Iterable[tuple[str, Mapping[str, Any], float]]]
"""Return the requests that were recorded since a time, oldest first: each one's stream entry id, ledger and start."""


@dataclass(slots=True)
class _Candidate:
    """A candidate that is judged: the state that it was made from, and its figures."""

    state: InForce
    labels: Mapping[str, str]
    """The label of each arm's policy."""
    rollout: Rollout | None
    trial: Trial | None
    """None for one that is not a canary."""
    evaluation: Evaluation | None
    shadow: ShadowFigures | None
    since: float
    """Unix seconds from which requests count."""


class CanaryJudge:
    """Judge the candidates of one store. `run` goes on until it is cancelled."""

    def __init__(
        self,
        store: Store,
        say: Say,
        *,
        holder: str = "",
        earlier: Earlier = lambda _since: (),
        clock: Callable[[], float] = time.time,
        look_s: float = _LOOK_S,
        pulse_s: float = PULSE_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        """Judge under the name `holder`, by default host and process id. `clock` returns Unix seconds.

        A judge that starts while a step is under way reads again what was recorded since it began: `earlier` has what
        the store's stream has no more.
        """
        self._store = store
        self._registry = PolicyRegistry(store, "judge")
        self._say = say
        self._holder = (holder or f"{socket.gethostname()}:{os.getpid()}").encode()
        self._earlier = earlier
        self._clock = clock
        self._look_s = look_s
        self._pulse_s = pulse_s
        self._settle_s = settle_s
        self._candidates: dict[str, _Candidate] = {}
        self._documents: dict[str, Version] = {}
        self._last = {TRACES: "", feedback.STREAM: "", label.LABELS: ""}
        self._judging_since: float | None = None
        self._said = ""

    async def run(self) -> None:
        """Look once a second until cancelled; then give the lease back, so that another judge can go on at once."""
        try:
            while True:
                began = time.monotonic()
                try:
                    await self.look()
                except StoreUnavailable as down:
                    self._say_once(f"the store does not answer ({down.reason}); trying on")
                await asyncio.sleep(max(0.0, self._look_s - (time.monotonic() - began)))
        finally:
            if self._judging_since is not None:
                words = (b"EVAL", _RELEASE, b"1", JUDGE.encode(), self._holder)
                await self._store.ask([Command(words)], _LIMIT_S)

    async def look(self) -> None:
        """Renew the lease, read what came, and judge every candidate. Raises StoreUnavailable."""
        if not await self._hold():
            return
        states = await self._registry.in_force()
        await self._follow(states)
        if not self._candidates:
            return
        await self._read_requests()
        await self._read_ratings()
        await self._read_labels()
        for surface in list(self._candidates):
            await self._judge(surface)

    async def _hold(self) -> bool:
        """Take or renew the lease; return whether this judge is at work. Take back what was served unjudged."""
        now = self._clock()
        life, at = b"%d" % (self._pulse_s * 1000), b"%.3f" % now
        words = (b"EVAL", _HOLD, b"2", JUDGE.encode(), _JUDGED.encode(), self._holder, life, at)
        [[held, before]] = await self._store.ask([Command(words)], _LIMIT_S)
        if not held:
            self._judging_since = None
            self._candidates.clear()
            self._say_once(f"{before.decode()} judges; waiting until it stops")
            return False
        silent_since = None if before is None else float(before)
        if self._judging_since is None:
            self._say_once("judging")
        if silent_since is None or now - silent_since > self._pulse_s:
            self._candidates.clear()
            await self._take_back_unjudged(silent_since, now)
            self._judging_since = now
        elif self._judging_since is None:
            self._judging_since = -1.0  # the judge before was at work until now: its trials go on
        return True

    async def _take_back_unjudged(self, silent_since: float | None, now: float) -> None:
        """Roll back each canary that workers served after the last judge stopped: they do for as long as its pulse."""
        if silent_since is None:
            return
        for surface, state in (await self._registry.in_force()).items():
            rolling = state.rolling
            if rolling is not None and rolling.mode == "canary" and rolling.since <= silent_since + self._pulse_s:
                reason = f"nobody judged it for {now - silent_since:.0f} s"
                await self._change(surface, state, "rollback", reason, "")

    async def _follow(self, states: Mapping[str, InForce]) -> None:
        """Begin a trial for each new step, and end those that are over."""
        idle = not self._candidates
        for surface in list(self._candidates):
            state = states.get(surface)
            if state is None or _step_of(state) != _step_of(self._candidates[surface].state):
                del self._candidates[surface]
            else:
                self._candidates[surface].state = state
        for surface, state in states.items():
            if surface not in self._candidates and state.rolling is not None:
                try:
                    self._candidates[surface] = await self._begun(state, state.rolling)
                except (RegistryError, ConfigError) as error:
                    self._say_once(f"{surface}: {error}")
        if idle and self._candidates:  # nothing was read so far: begin where the first step began
            since = min(candidate.since for candidate in self._candidates.values())
            self._last = dict.fromkeys(self._last, f"{int(since * 1000)}-0")
            if self._clock() - since > self._look_s:
                for entry, ledger, started in await asyncio.to_thread(lambda: list(self._earlier(since))):
                    self._tell(ledger, started)
                    self._last[TRACES] = entry

    async def _begun(self, state: InForce, rolling: Rolling) -> _Candidate:
        """Return a candidate whose step begins. Raises RegistryError and ConfigError."""
        version, live = await self._version(state, rolling.document), await self._version(state, state.document)
        labels = {CANDIDATE: version.label, CONTROL: live.label}
        if rolling.mode == "evaluate":
            return _Candidate(state, labels, None, None, Evaluation(version.content), None, rolling.since)
        candidate, control = (arm.policy() for arm in (version, live))
        if rolling.mode == "shadow":
            judged = any(policy.of(RolloutSections).learn is not None for policy in (candidate, control))
            return _Candidate(state, labels, None, None, None, ShadowFigures(judged), rolling.since)
        rollout = candidate.of(RolloutSections).rollout
        if rollout is None:
            raise RegistryError(f"{version.label} has no rollout block, so nothing judges it")
        since = max(rolling.since, self._judging_since or 0.0)
        learn = {CANDIDATE: labels_of(candidate), CONTROL: labels_of(control)}
        before = [] if rollout.guard.ttft_p95 is None else await self._ttfts_before(since, live)
        trial = Trial(rollout, rolling.share, since, self._settle_s, learn, before)
        return _Candidate(state, labels, rollout, trial, None, None, since)

    async def _ttfts_before(self, since: float, live: Version) -> list[float]:
        """Return the latest times to the first token under the policy in force before `since`, in seconds."""
        found: list[float] = []
        end = b"(%d-0" % (since * 1000)
        for _ in range(_MOST_BEFORE // _PAGE):
            words = (b"XREVRANGE", TRACES.encode(), end, b"-", b"COUNT", b"%d" % _PAGE)
            [page] = await self._store.ask([Command(words)], _LIMIT_S)
            for _, fields in page:
                if not is_record(fields[1]):
                    continue
                ledger = orjson.loads(fields[1])["ledger"]
                if ledger["policy"] == live.label and ledger.get("arm") in ("", None, CONTROL):
                    ttft_s = ttft_of(ledger)
                    found += [] if ttft_s is None else [ttft_s]
            if len(page) < _PAGE:
                break
            end = b"(" + page[-1][0]
            if len(found) >= _ENOUGH_BEFORE:
                break
        return found[:_ENOUGH_BEFORE]

    async def _version(self, state: InForce, document: str) -> Version:
        if document not in self._documents:
            documents = await self._registry.documents([state])
            self._documents.update(documents)
        if document not in self._documents:
            raise RegistryError(f"the registry has lost the text of {state.surface}")
        return self._documents[document]

    async def _read_requests(self) -> None:
        async for page in self._pages(TRACES):
            records = [orjson.loads(blob) for blob in page if is_record(blob)]
            await self._learn_bases(records)
            for record in records:
                self._tell(record["ledger"], record["started"])
                candidate = self._candidates.get(record["ledger"]["surface"])
                if candidate is not None and candidate.evaluation is not None and record["started"] >= candidate.since:
                    candidate.evaluation.add(record)

    async def _pages(self, stream: str) -> AsyncIterator[list[bytes]]:
        """Yield what came in a stream since it was last read; a page that was not worked off is read again."""
        while page := await self._store.after(stream, self._last[stream], _PAGE, 0):
            yield [blob for _, blob in page]
            self._last[stream] = page[-1][0]

    async def _learn_bases(self, records: list[dict[str, Any]]) -> None:
        """Read what the decisions of these requests share, where a candidate is evaluated on them."""
        for surface, candidate in self._candidates.items():
            if candidate.evaluation is None:
                continue
            named = {candidate.evaluation.unknown(one) for one in records if one["ledger"]["surface"] == surface} - {""}
            if not named:
                continue
            words = (b"HMGET", BASES.encode(), *(name.encode() for name in named))
            [blobs] = await self._store.ask([Command(words)], _LIMIT_S)
            for name, blob in zip(named, blobs, strict=True):
                if blob is not None:
                    try:
                        candidate.evaluation.learn(name, blob)
                    except ValueError as error:
                        self._say_once(f"{surface}: {error}")

    def _tell(self, ledger: Mapping[str, Any], started: float) -> None:
        candidate = self._candidates.get(ledger["surface"])
        arm = ledger.get("arm")
        # A request of another candidate, or of the policy before this one, may end late.
        if candidate is None or not arm:
            return
        if candidate.trial is not None and candidate.labels.get(arm) == ledger["policy"]:
            candidate.trial.add(ledger, started)
        if candidate.shadow is not None and arm == SHADOW and candidate.labels[CANDIDATE] == ledger["policy"]:
            candidate.shadow.add(ledger)

    async def _read_ratings(self) -> None:
        async for page in self._pages(feedback.STREAM):
            for blob in page:
                rating = feedback.decode_feedback(blob)
                candidate = None if rating is None else self._candidates.get(rating.surface)
                if rating is not None and candidate is not None and candidate.trial is not None:
                    candidate.trial.rate(rating.tenant, rating.request_id, rating.score)

    async def _read_labels(self) -> None:
        async for page in self._pages(label.LABELS):
            for blob in page:
                said = label.decode_label(blob)
                candidate = None if said is None else self._candidates.get(said["surface"])
                if said is None or candidate is None:
                    continue
                if candidate.shadow is not None and said.get("candidate") == candidate.labels[CANDIDATE]:
                    candidate.shadow.compare(said)
                if candidate.trial is not None and not said.get("candidate"):
                    candidate.trial.judge(said["tenant"], said["request_id"], label.of_served(said))

    async def _judge(self, surface: str) -> None:
        candidate = self._candidates[surface]
        now = self._clock()
        rolling = candidate.state.rolling
        if rolling is None:
            return
        if candidate.evaluation is not None:
            await self._registry.put_report(surface, evaluation_report(rolling, candidate.evaluation, now))
        if candidate.shadow is not None:
            await self._registry.put_report(surface, shadow_report(rolling, candidate.shadow, now))
        if candidate.trial is None or candidate.rollout is None:
            return
        verdict = candidate.trial.verdict(now)
        await self._registry.put_report(surface, canary_report(rolling, len(candidate.rollout.steps), verdict, now))
        if verdict.move == "wait" or (rolling.paused and verdict.move != "rollback"):
            return
        await self._change(surface, candidate.state, verdict.move, verdict.reason, details_of(verdict))

    async def _change(self, surface: str, state: InForce, move: str, reason: str, details: str) -> None:
        """Carry out a verdict. Where somebody else has changed the surface meanwhile, the next look judges anew."""
        do = {"rollback": self._registry.rollback, "pass": self._registry.step, "pause": self._registry.pause}[move]
        try:
            after = await do(surface, state.revision, by=BY, message=reason, details=details)
        except RegistryConflict:
            return
        except RegistryError as error:
            self._say_once(f"{surface}: {error}")
            return
        self._candidates.pop(surface, None)
        candidate = f"{surface}@{state.rolling.version[:7]}" if state.rolling else surface
        done = move if move != "pass" else write_share(after.rolling.share) if after.rolling else "in force for all"
        self._say(f"{candidate}: {done}: {reason}")

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._say(text)
        self._said = text


def labels_of(policy: Rules) -> Learn | None:
    """Return what makes labels of the policy's answers; None for nothing, as where it has no two tiers to compare."""
    return policy.of(RolloutSections).learn if len(policy.tiers) > 1 else None


def _step_of(state: InForce) -> tuple[object, ...]:
    rolling = state.rolling
    return () if rolling is None else (state.document, rolling.document, rolling.step, rolling.share, rolling.since)
