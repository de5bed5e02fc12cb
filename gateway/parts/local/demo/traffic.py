"""Send the demo's scenes to the gateway at a rate, rate some of the answers, and say what came of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import Any, Final

import httpx2
import orjson

from gateway.parts.local.demo.scenes import DrawnScene, draw_scenes, read_scenes

_SAY_EVERY_S: Final = 5.0
_TIMEOUT_S: Final = 60.0
_RATING_TRIES: Final = 8
_RECORDED_S: Final = 0.25
_SURE: Final = 0.6
"""Confidence below which clients of the demo mostly do not like an answer."""
_LIKED_IF_UNSURE: Final = 0.05


class DemoTraffic:
    """Send requests for `minutes`, `rate` of them a second. `counts` holds how many replies came by each path.

    `canary` starts the trial of a candidate, once every scene has been sent; it returns what to say of it.
    """

    def __init__(
        self,
        url: str,
        *,
        minutes: float,
        rate: float,
        seed: int,
        say: Callable[[str], None],
        canary: Callable[[], Awaitable[str]],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.shown: dict[str, str] = {}
        """By what there is to see, the id of the latest request that shows it."""
        self.ratings = 0
        self._url = url
        self._for_s = minutes * 60
        self._rate = rate
        self._seed = seed
        self._say = say
        self._canary = canary
        self._said_at = 0.0

    async def run(self) -> None:
        """Send until the time is over, and wait for the last answers."""
        started = self._said_at = time.monotonic()
        first_round = len(read_scenes()[0])
        limits = httpx2.Limits(max_connections=64)
        async with (
            httpx2.AsyncClient(base_url=self._url, timeout=_TIMEOUT_S, limits=limits, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            due = started
            within = takewhile(lambda _: time.monotonic() - started < self._for_s, enumerate(draw_scenes(self._seed)))
            for number, drawn in within:
                if number < first_round:
                    self._say(f"  {drawn.scene.surface:<13} {drawn.scene.name}")
                if number == first_round:
                    self._say(await self._canary())
                group.create_task(self._play(client, drawn))
                due = max(due + drawn.requests / self._rate, time.monotonic() - 1.0)
                await asyncio.sleep(max(0.0, min(due, started + self._for_s) - time.monotonic()))
                self._say_progress(time.monotonic() - started)
        self._say(f"sent: {self._summary()}")

    async def _play(self, client: httpx2.AsyncClient, drawn: DrawnScene) -> None:
        """Send a scene's requests one after the other, and rate their answers."""
        scene = drawn.scene
        if scene.raw is not None:
            await self._ask(client, {"model": scene.surface, **scene.raw})
            return
        messages: list[dict[str, str]] = []
        for text, luck in zip(drawn.texts, drawn.luck, strict=True):
            messages = [*(messages if scene.conversation else []), {"role": "user", "content": text}]
            body = {"model": scene.surface, "messages": messages, "stream": scene.stream, **(scene.body or {})}
            headers, answer = await self._ask(client, body)
            messages.append({"role": "assistant", "content": answer})
            await asyncio.sleep(scene.pause)
            if scene.show and "x-request-id" in headers:
                self.shown[scene.show] = headers["x-request-id"]
            if scene.rating is not None and "x-tierline-tier" in headers:
                await self._rate_it(client, headers, scene.rating, luck)

    async def _ask(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> tuple[httpx2.Headers, str]:
        """Send one request; return the reply's headers and the text of its answer. A failure is counted as one."""
        try:
            async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
                data = await reply.aread()
        except httpx2.HTTPError as error:
            self.counts[f"failed ({type(error).__name__})"] += 1
            return httpx2.Headers(), ""
        path = reply.headers.get("x-tierline-path") if reply.status_code == 200 else f"refused ({reply.status_code})"
        self.counts[path or "no path"] += 1
        if path is not None and "x-request-id" in reply.headers:
            self.shown[path] = reply.headers["x-request-id"]
        return reply.headers, _text_of(data, bool(body.get("stream"))) if reply.status_code == 200 else ""

    async def _rate_it(self, client: httpx2.AsyncClient, headers: httpx2.Headers, rating: float, luck: float) -> None:
        """Say whether an answer was right, as `rating` has it; doubtful answers of the small model mostly were not."""
        unsure = headers["x-tierline-tier"] == "local" and float(headers.get("x-tierline-confidence", 1)) < _SURE
        liked = luck < (_LIKED_IF_UNSURE if unsure else rating)
        opinion = {"request_id": headers["x-request-id"], "correct": liked}
        for _ in range(_RATING_TRIES):
            try:
                reply = await client.post("/v1/feedback", json=opinion)
            except httpx2.HTTPError as error:
                self.counts[f"failed ({type(error).__name__})"] += 1
                return
            if reply.is_success:
                self.ratings += 1
                return
            await asyncio.sleep(_RECORDED_S)  # until the request's record, which is written behind the reply, is there

    def _say_progress(self, elapsed: float) -> None:
        now = time.monotonic()
        if now - self._said_at >= _SAY_EVERY_S:
            self._said_at = now
            self._say(f"{_clock(elapsed)} of {_clock(self._for_s)}: {self._summary()}")

    def _summary(self) -> str:
        parts = ", ".join(f"{number} {path}" for path, number in self.counts.most_common())
        return f"{self.counts.total()} requests: {parts}; {self.ratings} answers rated"


def _text_of(data: bytes, stream: bool) -> str:
    """Return the text of an answer: of a JSON reply, or of all chunks of a stream."""
    if not stream:
        return str(orjson.loads(data)["choices"][0]["message"].get("content") or "")
    events = [line.removeprefix(b"data: ") for line in data.splitlines() if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in orjson.loads(event).get("choices") or ()]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
