"""Follow the registry of policies from one worker: what is in force there comes into force here within a second.

Four times a second the follower asks for the registry's revision and the judge's pulse, in one round trip; only if one
of them has changed does it read the states, and only documents that it has not read yet. A blocking read of the audit
trail would take one round trip a second in place of four, but a connection of its own, and would miss a store that was
emptied or replaced by an older copy. All of this takes 1.3 ms of CPU a second, 0.4 of it for the four questions.

Nothing here is on a request's path. While the store is down the last good set stays in force. A worker that starts
without the store takes the set that its state folder keeps, else the files. Policy files seed an empty registry; after
that a file that says something else is drift: it is reported, and never applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cache.store.base import StoreUnavailable
from gateway.caller import bearer_key
from gateway.parts.rollout.policy import CANDIDATE, RolloutSections, assign
from gateway.parts.rollout.registry import last_good
from gateway.parts.rollout.registry.checks import FileDrift, seeds
from gateway.parts.rollout.registry.records import InForce, Replica, Rolling, Version
from gateway.parts.rollout.registry.registry import PolicyRegistry, Pulse, RegistryError
from gateway.parts.rollout.tried_policy import NoSuchVersion
from policies.errors import ConfigError, InvalidContent, Problem
from policies.loader import PolicySet, PolicySource, RollingPolicy
from policies.model import Policy
from policies.yaml_source import Document

Pair = tuple[Policy, Document]

_INTERVAL_S: Final = 0.25
_HEARTBEAT_S: Final = 1.0
_UNHEARD_S: Final = 10.0
"""Time without the store after which candidates stop serving here: no judge could take them back."""
_START_S: Final = 2.0
"""How long a start waits for the store before it takes the set that the state folder keeps, or the files."""


class PolicyFollower:
    """Hold the policy set in force (`current`), and why what the store says is not in force here (`failure`, or None).

    It has the shape of `PolicyReloader`: `on_success` is called with every set that comes into force and when a failure
    is corrected, `on_failure` with every new failure, `on_note` with what an operator should know, once each; all on
    the event loop. Await `start()` before requests are served, run `run()` as a task, and await `aclose()`.
    """

    def __init__(
        self,
        source: PolicySource,
        registry: PolicyRegistry,
        kept: Path,
        on_success: Callable[[PolicySet], None],
        on_failure: Callable[[ConfigError], None],
        on_note: Callable[[str], None],
        interval_s: float = _INTERVAL_S,
        unheard_s: float = _UNHEARD_S,
    ) -> None:
        """Take the set in the file `kept`, else the files. Raises ConfigError if neither can be loaded."""
        self.failure: ConfigError | None = None
        self.drift: tuple[str, ...] = ()
        self.revision: int | None = None
        self.source = source
        self._registry = registry
        self._file = kept
        self._on_success = on_success
        self._on_failure = on_failure
        self._on_note = on_note
        self._interval_s = interval_s
        self._unheard_s = unheard_s
        self._heard_at = time.monotonic()
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._started = time.time()
        self._pulse: Pulse | None = None
        self._states: Mapping[str, InForce] = {}
        self._documents: dict[str, Version] = {}
        self._good: dict[str, str] = {}
        """The documents in force here, by surface."""
        self._made: dict[str, Pair] = {}
        """Policies by document: a document is read once."""
        self._files = FileDrift(source)
        self._unavailable = "the store has not answered yet"
        self._from = ""
        """Where the set in force comes from while the store has not been read."""
        self._published_at = -_HEARTBEAT_S
        self._looked_at = -_HEARTBEAT_S
        self.current = self._kept() or self._of_files()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong with where policies come from, for /readyz: a store that is down, and files that differ."""
        notes = [f"drift: {line}" for line in self.drift]
        if self._unavailable:
            where = f"those of {self._from}" if self._from else "the last good ones"
            notes.insert(0, f"the registry in the store cannot be read ({self._unavailable}); {where} are in force")
        return tuple(notes)

    async def start(self) -> None:
        """Take what the registry says, if the store answers within two seconds; seed it if it is empty."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                await self.look()
                while self._pulse is None and "unconfigured" not in self._unavailable:
                    await asyncio.sleep(self._interval_s / 5)
                    await self.look()
        if self._unavailable:
            self._on_note(self.notes[0])

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001  (whatever it is, the next change must still be followed)
                self._unavailable = f"{type(error).__name__}: {error}"
                self._on_note(self.notes[0])
                await asyncio.sleep(_HEARTBEAT_S)
            await asyncio.sleep(self._interval_s)

    async def version(self, surface: str, prefix: str) -> Policy:
        """Return the version of a surface's policy that begins so, in force or not, made to fit this deployment.

        Raises NoSuchVersion, and StoreUnavailable where it is neither in force nor a candidate.
        """
        rolling = self.current.rolling.get(surface)
        near = (self.current.by_surface.get(surface), None if rolling is None else rolling.policy)
        for policy in near:
            if policy is not None and policy.version.startswith(prefix):
                return policy
        try:
            version = await self._registry.version(surface, prefix)
            return await asyncio.to_thread(self._fitting, version)
        except RegistryError as error:
            raise NoSuchVersion(str(error)) from None
        except ConfigError as error:
            raise NoSuchVersion(f"{surface} {prefix!r} does not fit this deployment: {error}") from None

    def _fitting(self, version: Version) -> Policy:
        """Return the policy of a version beside the other surfaces that are in force. Raises ConfigError."""
        pair = self.source.made(version.content, version.label)
        others = [self._pair(document) for name, document in list(self._good.items()) if name != version.surface]
        self.source.joined([*others, pair])
        return pair[0]

    def assigned(
        self, live: Policy, headers: Mapping[bytes, bytes], tenant: str, session: str
    ) -> tuple[Policy, str, str]:
        """Return the policy of a request's arm, that and its unit where a canary runs on the surface, else `live`."""
        candidate = self.current.rolling.get(live.surface)
        if candidate is None or candidate.mode != "canary":
            return live, "", ""
        arm, unit = assign(candidate, tenant, bearer_key(headers), session)
        return candidate.policy if arm == CANDIDATE else live, arm, unit

    async def aclose(self) -> None:
        """Remove this worker from those that the registry shows."""
        with contextlib.suppress(StoreUnavailable):
            await self._registry.withdraw(self._name)

    async def look(self) -> None:
        """Ask the registry once; take what changed, look at the files, and say what is in force here."""
        changed = False
        try:
            pulse = await self._registry.pulse()
            if not pulse.revision:
                await self._seed()
                pulse = await self._registry.pulse()
            if pulse != self._pulse:
                await self._take(pulse)
                changed = True
            self._unavailable, self._heard_at = "", time.monotonic()
        except StoreUnavailable as down:
            self._unavailable = down.reason
            if time.monotonic() - self._heard_at > self._unheard_s:
                self._drop_candidates()
        except OSError as error:  # a file that vanished while it was read
            self._unavailable = str(error)
        except ConfigError as error:  # the files cannot seed the registry
            self._unavailable = "it is empty, and the files cannot seed it"
            self._failed(error)
        await self._look_at_files(at_once=changed)
        if not self._unavailable and (changed or time.monotonic() - self._published_at >= _HEARTBEAT_S):
            self._published_at = time.monotonic()
            with contextlib.suppress(StoreUnavailable):
                await self._registry.publish(self._replica())

    def _drop_candidates(self) -> None:
        """Leave out the candidates that call models; they are taken up again when the store answers."""
        kept = {name: trial for name, trial in self.current.rolling.items() if trial.mode == "evaluate"}
        if len(kept) < len(self.current.rolling):
            self.current, self._pulse = replace(self.current, rolling=MappingProxyType(kept)), None
            self._on_success(self.current)

    async def _seed(self) -> None:
        """Fill an empty registry: with the last good set of this worker if there is one, else with the files."""
        if self._good:
            versions = [self._documents[document] for document in self._good.values()]
            message = "restored: the store had lost its registry"
        else:
            versions = await asyncio.to_thread(seeds, self.source, time.time())
            message = f"seeded from the files in {self.source.directory}"
        if await self._registry.seed(versions, message):
            self._on_note(f"the registry in the store was empty: {message}")

    async def _take(self, pulse: Pulse) -> None:
        states = await self._registry.states()
        self._documents.update(await self._registry.documents(list(states.values()), self._documents))
        live = {name: state for name, state in states.items() if not state.removed}
        if missing := [state.surface for state in live.values() if state.document not in self._documents]:
            raise StoreUnavailable("error", f"the registry has lost the text of {', '.join(missing)}")
        loaded, good, problems = await asyncio.to_thread(self._load, live, pulse.judged)
        self._pulse, self._states, self.revision, self._from = pulse, states, pulse.revision, ""
        if problems:
            self._failed(InvalidContent(problems))
        if loaded is None:
            return
        mended = self.failure is not None and not problems
        if mended:
            self.failure = None
        changed = loaded.by_surface != self.current.by_surface or loaded.rolling != self.current.rolling
        self.current, self._good = loaded, good
        used = {state.document for state in states.values()} | set(good.values())
        used |= {state.rolling.document for state in states.values() if state.rolling is not None}
        for document in self._documents.keys() - used:
            del self._documents[document]
            self._made.pop(document, None)
        if changed or mended:
            self._on_success(loaded)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(last_good.keep, self._file, [self._documents[id_] for id_ in good.values()])

    def _load(
        self, states: Mapping[str, InForce], judged: bool
    ) -> tuple[PolicySet | None, dict[str, str], list[Problem]]:
        """Return the set that these states make, its documents by surface, and why anything of it is left out."""
        problems: list[Problem] = []
        good: dict[str, str] = {}
        for surface, state in states.items():
            try:
                self._pair(state.document)
                good[surface] = state.document
            except ConfigError as error:
                problems += error.problems
                if surface in self._good:
                    good[surface] = self._good[surface]
        try:
            loaded = self._joined(good)
        except ConfigError as error:
            # What does not fit this deployment is left as it was, and the other surfaces are not held up by it.
            problems += error.problems
            wrong = {str(problem.file) for problem in error.problems}
            for surface, document in good.items():
                if self._documents[document].label in wrong:
                    good[surface] = self._good.get(surface, document)
            try:
                loaded = self._joined(good)
            except ConfigError:
                return None, good, problems
        rolling: dict[str, RollingPolicy] = {}
        for surface, state in states.items():
            if state.rolling is not None and (judged or state.rolling.mode == "evaluate"):
                try:
                    rolling[surface] = self._candidate(state.rolling, surface, good)
                except ConfigError as error:
                    problems += error.problems
        return replace(loaded, rolling=MappingProxyType(rolling)), good, problems

    def _joined(self, documents: Mapping[str, str]) -> PolicySet:
        return self.source.joined([self._pair(document) for document in documents.values()])

    def _candidate(self, rolling: Rolling, surface: str, good: Mapping[str, str]) -> RollingPolicy:
        """Return a candidate that fits the deployment and the other surfaces. Raises ConfigError."""
        if rolling.document not in self._documents:
            raise InvalidContent([Problem(Path(f"{surface}@{rolling.version[:7]}"), 0, "", "its text is not there")])
        self._joined({**good, surface: rolling.document})
        policy, _ = self._pair(rolling.document)
        sticky = "conversation" if (rollout := policy.of(RolloutSections).rollout) is None else rollout.sticky
        return RollingPolicy(policy, rolling.share, rolling.mode, sticky, policy.version)

    def _pair(self, document: str) -> Pair:
        if document not in self._made:
            version = self._documents[document]
            self._made[document] = self.source.made(version.content, version.label)
        return self._made[document]

    async def _look_at_files(self, *, at_once: bool) -> None:
        if not self._states or not (at_once or time.monotonic() - self._looked_at >= _HEARTBEAT_S):
            return
        self._looked_at = time.monotonic()
        drift = await asyncio.to_thread(self._files.look, self._states)
        for line in drift:
            if line not in self.drift:
                self._on_note(f"not applied, since policies come from the store: {line}")
        self.drift = drift

    def _replica(self) -> Replica:
        current = self.current
        surfaces = {name: policy.version for name, policy in current.by_surface.items()}
        rolling = {name: f"{one.policy.version} {one.mode} {one.share:.4g}" for name, one in current.rolling.items()}
        problem = "" if self.failure is None else str(self.failure)
        default = self.source.default_surface
        return Replica(self._name, self.revision or 0, surfaces, rolling, problem, self.drift, default, self._started)

    def _failed(self, failure: ConfigError) -> None:
        if self.failure is None or self.failure.problems != failure.problems:
            self.failure = failure
            self._on_failure(failure)

    def _kept(self) -> PolicySet | None:
        """Return the set that the state folder keeps; None if there is none that this deployment can hold."""
        versions = last_good.kept(self._file)
        try:
            pairs = {version.surface: self.source.made(version.content, version.label) for version in versions}
            kept = self.source.joined(list(pairs.values()))
        except ConfigError:
            return None
        self._documents = {version.document: version for version in versions}
        self._made = {version.document: pairs[version.surface] for version in versions}
        self._good = {version.surface: version.document for version in versions}
        self._from = str(self._file)
        return kept

    def _of_files(self) -> PolicySet:
        self._from = f"the files in {self.source.directory}"
        return self.source.load()
