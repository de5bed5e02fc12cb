"""Lanes: surfaces of one gateway that share its process and its upstreams, but no endpoint state.

A fault makes an endpoint rest, and a resting endpoint would change the next test. So every test takes a lane of its
own: a surface whose tiers are its alone, though the same scripted upstreams stand behind them all.

    lane    weak (local upstream), then strong (hosted upstream); answers of weak are judged
    lone    weak alone
    pair    one tier of two endpoints, both at the local upstream
    quad    one tier of four
    raw     a tier at the raw upstream, then strong
    deaf    a tier whose connections hang, then strong
    mute    such a tier alone
    other   as lane, over the other transport, httpx2
    brief   a tier at the local upstream that holds 512 tokens, then strong
    tight   such a tier alone
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.ask import chat_body, events_of, record_at, text_of
from tests.support.gateway import Gateway
from tests.support.wait import SLOWNESS, until

COUNTS = {
    "lane": 60,
    "lone": 40,
    "pair": 12,
    "quad": 2,
    "raw": 16,
    "deaf": 2,
    "mute": 2,
    "other": 12,
    "brief": 8,
    "tight": 2,
}
"""How many of each a gateway has; when they run out, another gateway starts."""
MOST_OF_A_TEST = 4
"""So many of a kind one test takes, where there are as many."""
TIERS = {
    "lane": ("weak", "strong"),
    "lone": ("weak",),
    "pair": ("pair",),
    "quad": ("quad",),
    "raw": ("raw", "strong"),
    "deaf": ("deaf", "strong"),
    "mute": ("deaf",),
    "other": ("weak", "strong"),
    "brief": ("small", "strong"),
    "tight": ("small",),
}
ENDPOINTS = {"pair": 2, "quad": 4}
CLASS_NAME = re.compile(r"\b(?!LangChain\b)[A-Z][a-z0-9]+[A-Z]\w*|\b\w+Error\b")
"""What only a Python class is called; LangChain is a library."""
POLICY = """
surface: {name}
slo: {{ttft: {{p99: 800ms}}, total: {{p99: 800ms}}, deadline: {deadline}}}
holdout: 0
tiers: [{tiers}]
route: {{classifier: none, start: {{{first}: otherwise}}}}
escalate:
  when: {{confidence_below: 0.5, invalid: [json, tool_args, tool_calls]}}
  no_signal: accept
  stream: {{hold_tokens: 4, hold_max: 200ms}}
cache: {{exact: {{ttl: 1h}}}}
"""


def names() -> Iterator[tuple[str, str]]:
    """Every lane there is, as (kind, name)."""
    return ((kind, f"{kind}-{number}") for kind, count in COUNTS.items() for number in range(count))


def tiers_of(kind: str, name: str) -> list[str]:
    """The tiers of a lane, cheapest first."""
    return [f"{name}.{tier}" for tier in TIERS[kind]]


def policies() -> dict[str, str]:
    """A policy per lane."""
    return {
        name: POLICY.format(
            name=name,
            deadline=f"{1500 * SLOWNESS:.0f}ms" if len(TIERS[kind]) == 1 else "15s",
            tiers=", ".join(tiers_of(kind, name)),
            first=tiers_of(kind, name)[0],
        )
        for kind, name in names()
    }


def tiers(urls: Mapping[str, str]) -> list[dict[str, Any]]:
    """The tiers of every lane; `urls` are the base URLs by role."""
    return [
        {"name": tier, "backends": [_backend(kind, role, urls[role]) for _ in range(ENDPOINTS.get(role, 1))]}
        for kind, name in names()
        for tier, role in zip(tiers_of(kind, name), TIERS[kind], strict=True)
    ]


def _backend(kind: str, role: str, url: str) -> dict[str, Any]:
    return {
        **({"context": 512} if role == "small" else {}),
        "http": {"client": "httpx2" if kind == "other" else "http1"},
        "base_url": url,
        "model": role,
        "key_env": "HOSTED_KEY",
        "price": {"input": 2.5, "output": 10},
        "capabilities": ["tools", "json"],
        "connect_timeout": f"{400 * SLOWNESS:.0f}ms",
        "idle_timeout": f"{500 * SLOWNESS:.0f}ms",
        "max_reply": "2MiB",
    }


@dataclass
class Answer:
    """What a client got. `ended` is false when the body broke off before its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    ended: bool = True

    @property
    def json(self) -> Any:
        """The body of a JSON reply."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the envelope, whose shape is checked."""
        assert self.headers["content-type"] == "application/json"
        assert list(self.json) == ["error"]
        return checked(self.json["error"])

    @property
    def events(self) -> list[Any]:
        """The events of a stream, parsed; "[DONE]" as it is."""
        assert self.headers["content-type"] == "text/event-stream; charset=utf-8"
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == ""
        found = ["".join(line[6:] for line in block.split("\n") if line.startswith("data: ")) for block in blocks]
        return [data if data == "[DONE]" else json.loads(data) for data in found]

    @property
    def text(self) -> str:
        """What the answer says, JSON or stream."""
        return text_of(self.body)

    def event(self, kind: str) -> dict[str, Any]:
        """The one event of this type in a stream of another API."""
        (found,) = [event for event in events_of(self.body) if event.get("type") == kind]
        return found

    @property
    def broken(self) -> dict[str, Any]:
        """The error of a stream that broke: its one error is the last event, no [DONE] follows, and the body ends."""
        assert self.status == 200
        assert self.ended, "the body of a broken stream must end as HTTP, or clients meet a second error"
        assert "[DONE]" not in self.events
        assert ["error" in event for event in self.events] == [False] * (len(self.events) - 1) + [True]
        return checked(self.events[-1]["error"])


def checked(error: dict[str, Any]) -> dict[str, Any]:
    """The error object itself: four keys, a message in plain words, and a code that is text or null."""
    assert list(error) == ["message", "type", "param", "code"]
    assert not CLASS_NAME.search(error["message"]), error["message"]
    assert error["code"] is None or isinstance(error["code"], str)
    return error


@dataclass
class Rig:
    """The gateway with its lanes, and the ways to look at it from outside."""

    gateway: Gateway
    store_url: str
    _ids: Iterator[int] = field(default_factory=itertools.count)
    _taken: Counter[str] = field(default_factory=Counter)
    _takers: dict[str, str] = field(default_factory=dict)

    def take(self, kind: str) -> str:
        """A lane of this kind that no test has had; the name is its `model`."""
        number = self._taken[kind]
        assert number < COUNTS[kind], f"all lanes of kind {kind} are taken"
        self._taken[kind] += 1
        lane = f"{kind}-{number}"
        self._takers[lane] = os.environ.get("PYTEST_CURRENT_TEST", "")
        return lane

    @property
    def runs_low(self) -> bool:
        """Whether the next test may find too few lanes of some kind."""
        return any(COUNTS[kind] - taken < min(MOST_OF_A_TEST, COUNTS[kind] // 2) for kind, taken in self._taken.items())

    def connect(self) -> http.client.HTTPConnection:
        """A connection to the gateway."""
        return http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=30)

    def ask(
        self,
        model: str,
        headers: Mapping[str, str] | None = None,
        *,
        text: str = "hi",
        stream: bool = False,
        **changes: Any,
    ) -> Answer:
        """One chat completion; `changes` are members of the body."""
        body = chat_body(text, model, **({"stream": True} if stream else {})) | changes
        return self.post(json.dumps(body, separators=(",", ":")).encode(), headers)

    def served(self, model: str, **changes: Any) -> Answer:
        """`ask`, and again while the gateway turns newcomers away because the machine is so busy that it is late."""
        answer = self.ask(model, **changes)
        deadline = time.monotonic() + 15
        while answer.status == 503 and b"its event loop is late" in answer.body and time.monotonic() < deadline:
            time.sleep(0.1)
            answer = self.ask(model, **changes)
        return answer

    def stream(self, model: str, headers: Mapping[str, str] | None = None, **changes: Any) -> Answer:
        """One streamed chat completion."""
        return self.ask(model, headers, stream=True, **changes)

    def send(self, path: str, body: Mapping[str, Any]) -> Answer:
        """A POST of this body to any of the APIs."""
        return self.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})

    def post(self, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """A POST of these bytes as JSON."""
        sent = {"content-type": "application/json", **(headers or {})}
        return self.request("POST", "/v1/chat/completions", body, sent)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Any request."""
        connection = self.connect()
        try:
            connection.request(method, path, body, {"x-request-id": f"test-{next(self._ids)}"} | dict(headers or {}))
            return received(connection.getresponse())
        finally:
            connection.close()

    def record(self, request_id: str) -> dict[str, Any]:
        """The trace record of a request, once it is in the store."""
        try:
            return asyncio.run(record_at(self.store_url, request_id))
        except TimeoutError as missing:
            metrics = self.request("GET", "/metrics").body.decode().splitlines()
            dropped = [line for line in metrics if line.startswith(("tierline_telemetry", "tierline_store"))]
            raise AssertionError(
                f"no record of {request_id}: {dropped} {self.readyz()['store']}\n{self.gateway.log()}"
            ) from missing

    def hops(self, answer: Answer, name: str = "attempt") -> list[dict[str, Any]]:
        """The hops of this name in an answer's record."""
        hops = self.record(answer.headers["x-request-id"])["hops"]
        for hop in hops:
            assert not CLASS_NAME.search(hop["attributes"].get("tierline.reason", "")), hop
        return [hop for hop in hops if hop["name"] == name]

    def cached(self, model: str, **changes: Any) -> bool:
        """Whether this request would be answered from the store."""
        answer = self.ask(model, {"x-tierline-cache": "only-if-cached"}, **changes)
        assert answer.status in (200, 504)
        return answer.status == 200

    def readyz(self) -> dict[str, Any]:
        """What /readyz says."""
        found: dict[str, Any] = self.request("GET", "/readyz").json
        return found

    def states(self, lane: str) -> dict[str, str]:
        """The state of a lane's tiers, by role."""
        tiers = self.readyz()["tiers"]
        return {name.split(".")[1]: tier["state"] for name, tier in tiers.items() if name.split(".")[0] == lane}

    def in_flight(self) -> int:
        """How many backend calls the gateway counts."""
        tiers = self.readyz()["tiers"].values()
        return sum(backend["in_flight"] for tier in tiers for backend in tier["backends"].values())

    def idle(self) -> None:
        """Returns once no backend call is counted any more; if one stays, the tests whose lanes count one are named."""
        try:
            until(lambda: self.in_flight() == 0, 5, poll_s=0.02)
        except AssertionError:
            tiers = self.readyz()["tiers"]
            busy = {name for name, tier in tiers.items() if any(one["in_flight"] for one in tier["backends"].values())}
            takers = [self._takers.get(name.partition(".")[0], "") for name in busy]
            raise AssertionError(f"calls in flight: {sorted(busy)} {takers}") from None


def received(response: http.client.HTTPResponse) -> Answer:
    """The whole of a response, or as much of it as came."""
    headers = {name.lower(): value for name, value in response.getheaders()}
    try:
        return Answer(response.status, headers, response.read())
    except (http.client.IncompleteRead, ConnectionError) as broken:
        partial = broken.partial if isinstance(broken, http.client.IncompleteRead) else b""
        return Answer(response.status, headers, partial, ended=False)


def concurrently(calls: int, one: Callable[[], Answer]) -> list[Answer]:
    """The answers of so many calls at the same time."""
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(one())) for _ in range(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return answers
