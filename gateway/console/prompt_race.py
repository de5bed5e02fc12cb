"""Race one prompt through two lanes, each a policy version or a tier, and remember for a while what came and when.

A lane is an ordinary request to the gateway, marked as one that tries a policy (`x-tierline-try`). What the gateway
holds back before it commits to an answer no client can see, so a lane looks its record up once it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.archive.live import LiveArchive
from gateway.archive.query import QueryError
from gateway.console.gateway_client import GatewayClient, GatewayFailure, ReplyPart

KEPT_S: Final = 900.0
"""How long a race is kept after its end."""
_MOST_KEPT: Final = 32
_MOST_AT_ONCE: Final = 4
_LONGEST_S: Final = 300.0
_RECORD_S: Final = 5.0
"""How long a record is waited for; it takes up to a second."""


class TooManyRaces(Exception):
    """Raised when no further race may begin now; the message says why."""


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """What answers in a lane: a version of a surface's policy (`x-tierline-try`), or one tier of it."""

    value: str
    """Of the form and the URL: `chat/live`, `chat/candidate`, `chat/version/3f2a91c`, `chat/tier/hosted`."""
    surface: str
    label: str
    tried: str
    tier: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt that both lanes send."""

    text: str
    system: str = ""
    stream: bool = True
    cached: bool = False
    """Whether a stored answer will do, and the answer may be stored."""
    max_tokens: int | None = None


@dataclass(slots=True)
class RaceLane:
    """One request and what has come of it. Times are milliseconds since it was sent, by the console's clock."""

    name: str
    choice: LaneChoice
    request_id: str
    state: str = "waiting"
    """waiting, answering, done, failed or stopped."""
    facts: dict[str, str] = field(default_factory=dict)
    """What the reply's headers and its last comment say, without `x-tierline-`."""
    head_ms: float | None = None
    """When the reply's head came. Where a policy sends it early, that is before the commit."""
    arrivals: list[tuple[float, str]] = field(default_factory=list)
    """Each piece of text, and when it came."""
    total_ms: float | None = None
    finish: str = ""
    tokens: tuple[int, int] | None = None
    problem: tuple[str, str] | None = None
    """What went wrong, and what to do."""
    reached: bool = True
    row: Mapping[str, Any] | None = None
    """The archive's row of the request, once it is there."""

    @property
    def first_ms(self) -> float | None:
        """When the first text came."""
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(text for _, text in self.arrivals)

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.state not in ("waiting", "answering")

    def take(self, part: ReplyPart, at_ms: float) -> None:
        """Note a part of the reply."""
        self.facts.update(part.facts)
        self.head_ms = at_ms if self.head_ms is None else self.head_ms
        self.finish = part.finish or self.finish
        self.tokens = part.tokens or self.tokens
        if part.text:
            self.state = "answering"
            self.arrivals.append((at_ms, part.text))


class PromptRace:
    """Two lanes that run at once."""

    def __init__(self, prompt: Prompt, choices: Sequence[LaneChoice]) -> None:
        """Prepare the lanes; `run` sends them."""
        self.id = secrets.token_hex(6)
        self.prompt = prompt
        self.lanes = [
            RaceLane(name, choice, f"play-{self.id}-{name.lower()}") for name, choice in zip("AB", choices, strict=True)
        ]
        self.started = time.time()
        self.ended_at: float | None = None
        self.version = 0
        """Raised by every change."""
        self._began = time.perf_counter()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def elapsed_ms(self) -> float:
        """Time on the lanes' axis: since they were sent, or until the later one was over."""
        if all(lane.over for lane in self.lanes):
            return max(lane.total_ms or 0.0 for lane in self.lanes)
        return (time.perf_counter() - self._began) * 1000

    async def run(self, gateway: GatewayClient, archive: LiveArchive) -> None:
        """Send both lanes, read them to their ends, and look up their records."""
        self._began = time.perf_counter()
        self._tasks = [asyncio.create_task(self._drive(lane, gateway), name=lane.request_id) for lane in self.lanes]
        try:
            await asyncio.gather(*self._tasks)
            await self._look_up(archive)
        finally:
            for task in self._tasks:
                task.cancel()
            self.ended_at = time.monotonic()
            self._tell()

    def stop(self) -> None:
        """Cancel what still runs: the gateway sees its client leave."""
        for task in self._tasks:
            task.cancel()

    async def wait(self, version: int, timeout_s: float) -> bool:
        """Return whether something has changed since `version`, waiting up to `timeout_s` for it."""
        if self.version == version:
            changed = self._changed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await changed.wait()
        return self.version != version

    def _tell(self) -> None:
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _now_ms(self) -> float:
        return (time.perf_counter() - self._began) * 1000

    async def _drive(self, lane: RaceLane, gateway: GatewayClient) -> None:
        """Send one lane's request; whatever happens to it stays in the lane."""
        try:
            async with asyncio.timeout(_LONGEST_S):
                async for part in gateway.ask(*request_of(self.prompt, lane)):
                    lane.take(part, self._now_ms())
                    self._tell()
            lane.state = "done"
        except GatewayFailure as failure:
            lane.state, lane.reached, lane.problem = "failed", failure.reached, (failure.what, failure.todo)
        except TimeoutError:
            what = f"It was not over after {_LONGEST_S:.0f} s, and was cancelled."
            lane.state, lane.problem = "failed", (what, "See on the request's page where the time went.")
        except asyncio.CancelledError:
            lane.state = "stopped"
        finally:
            lane.total_ms = self._now_ms()
            self._tell()

    async def _look_up(self, archive: LiveArchive) -> None:
        """Wait for the records of the lanes that reached the gateway."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _RECORD_S
        missing = [lane for lane in self.lanes if lane.reached]
        while missing and loop.time() < until:
            for lane in missing:
                since_ms = int(self.started * 1000) - 60_000
                with contextlib.suppress(QueryError):
                    where = f"request_id = $id AND entry_ms >= {since_ms}"
                    found = {"id": lane.request_id}
                    rows = await archive.newest("*", where, found, 1, between_ms=(since_ms, None))
                    lane.row = rows[0] if rows else None
                if lane.row is not None:
                    self._tell()
            missing = [lane for lane in missing if lane.row is None]
            if missing:
                await archive.wait_for_requests(0.5)


def request_of(prompt: Prompt, lane: RaceLane) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body and the headers of a lane's request."""
    messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    choice = lane.choice
    body: dict[str, Any] = {
        "model": f"tier:{choice.tier}" if choice.tier else choice.surface,
        "messages": [*messages, {"role": "user", "content": prompt.text}],
    }
    if prompt.max_tokens is not None:
        body["max_tokens"] = prompt.max_tokens
    if prompt.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    headers = {"x-request-id": lane.request_id, "x-tierline-surface": choice.surface, "x-tierline-try": choice.tried}
    return body, headers if prompt.cached else {**headers, "x-tierline-cache": "no-store"}


class PromptRaces:
    """The races of this console: a few at once, and the latest of them kept for a while."""

    def __init__(self, gateway: GatewayClient, archive: LiveArchive) -> None:
        """Send to `gateway`, and find records in `archive`. The client is closed with this."""
        self.url = gateway.url
        self.gateway = gateway
        self._archive = archive
        self._races: dict[str, tuple[PromptRace, asyncio.Task[None]]] = {}

    async def aclose(self) -> None:
        """Cancel the races that run, and close the connections to the gateway."""
        tasks = [task for _, task in self._races.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.gateway.aclose()

    def start(self, prompt: Prompt, choices: Sequence[LaneChoice]) -> PromptRace:
        """Begin a race. Raises TooManyRaces while others run."""
        self._drop()
        if sum(race.ended_at is None for race, _ in self._races.values()) >= _MOST_AT_ONCE:
            raise TooManyRaces(f"{_MOST_AT_ONCE} races run already; stop one, or wait until one is over.")
        race = PromptRace(prompt, choices)
        task = asyncio.create_task(race.run(self.gateway, self._archive), name=f"console.race.{race.id}")
        self._races[race.id] = race, task
        return race

    def find(self, race_id: str) -> PromptRace | None:
        """Return a race that is kept."""
        self._drop()
        found = self._races.get(race_id)
        return None if found is None else found[0]

    async def finished(self, race: PromptRace) -> None:
        """Return once a race is over, with its records where they came."""
        await asyncio.shield(self._races[race.id][1])

    def _drop(self) -> None:
        old = time.monotonic() - KEPT_S
        ended = {name: race.ended_at for name, (race, _) in self._races.items() if race.ended_at is not None}
        spare = len(self._races) - _MOST_KEPT
        for place, (name, at) in enumerate(sorted(ended.items(), key=lambda one: one[1])):
            if at < old or place < spare:
                del self._races[name]
