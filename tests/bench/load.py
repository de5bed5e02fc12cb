"""The load: wrk for requests, and the bodies they carry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path

import uvloop

from tests.bench.prompts import as_line
from tests.bench.rig import HERE, Meter, Service, tool
from tests.support.gateway import environment

_SYSTEM = (
    "You are the assistant of a company that sells parts for bicycles. Answer in the language of the question, in one "
    "paragraph, with the number of the part where there is one. If you do not know, say so and name the department "
    "that does. Never promise a delivery date. Prices are in euros and include tax; add the shipping rate when asked. "
    "Keep to the facts in the catalogue, and never invent a part number."
)
PROMPT = "which chain fits the 2019 touring frame with nine gears 481516"
_PER_SEED = 100
"""Single prompts that are taken from one seed's."""
_MOST_PER_SECOND = 2_500
"""Prompts that are prepared: more than any subject with `texts` answers."""
_BEHIND_S = 0.1
"""What a service still does for requests that it has answered counts as theirs."""
_MOST_SPACES = 6
"""Between two words of a `reworded` prompt: 60 million different texts with the same vector."""


_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class NotAsMeant(Exception):
    """A subject does not answer the way it is measured for."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One way to have a request answered. `model` says how ours is asked."""

    name: str
    service: Service
    model: str = "tier:hosted"
    unique: bool = False
    """Every request asks what was never asked before."""
    reworded: bool = False
    """Every request asks the same, spaced otherwise: another text, so no exact hit, and the same meaning."""
    texts: Callable[[int], Iterator[str]] | None = None
    """Makes the prompts of a run, of a seed; each is sent once."""
    scope: str = ""
    """Words in the system message: what is stored under others is not found."""
    path: str = ""
    """The x-tierline-path that shows it went this way."""
    target: str = "/v1/chat/completions"
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, prompt: str = PROMPT, **more: object) -> bytes:
        """The request's JSON, about 600 bytes, with `more` members."""
        prefix, suffix = _around(self.model, self.scope)
        whole = json.loads(prefix + as_line(prompt) + suffix)
        return json.dumps(whole | more, separators=(",", ":")).encode()

    def request(self, prompt: str) -> bytes:
        """The whole request, as it goes over a connection."""
        return self.head(body := self.body(prompt)) + body

    def head(self, body: bytes) -> bytes:
        """The request's head for a body."""
        lines = [f"POST {self.target} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode()


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of wrk came to."""

    per_second: float
    cpu_us: float
    core: float
    """The share of its core that the service got; less than all of it is somebody else's, or waiting for the load."""
    p50_ms: float
    p99_ms: float
    failed: int
    strayed: int
    """Replies that went another path; counted for a subject that is `reworded` or has `texts`."""


def run_wrk(subject: Subject, folder: Path, connections: int, seconds: float, seed: int, think_ms: float = 0.0) -> Load:
    """wrk on one thread for `seconds`; `think_ms` is each connection's mean pause between requests."""
    prefix, suffix = _around(subject.model, subject.scope)
    prompts = folder / "prompts.txt"
    if subject.texts is not None:
        lines = islice(subject.texts(seed), round(seconds * _MOST_PER_SECOND))
        prompts.write_text("".join(f"{as_line(text)}\n" for text in lines))
    env = environment(
        BENCH_WORDS=str(_words(folder)),
        BENCH_MOST_SPACES=str(_MOST_SPACES if subject.reworded else 0),
        BENCH_TARGET=subject.target,
        BENCH_HEADERS="\n".join(f"{name}: {value}" for name, value in subject.headers.items()),
        BENCH_PROMPTS="" if subject.texts is None else str(prompts),
        BENCH_WAY=subject.path if subject.reworded or subject.texts is not None else "",
        BENCH_PREFIX=prefix,
        BENCH_SUFFIX=suffix,
        BENCH_PROMPT=PROMPT,
        BENCH_UNIQUE="1" if subject.unique else "0",
        BENCH_THINK_MS=str(think_ms),
        BENCH_SEED=str(seed),
    )
    command = [tool("wrk") or "wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "5s"]
    command += ["-s", str(HERE / "wrk.lua"), f"http://127.0.0.1:{subject.service.port}"]
    meter = Meter(subject.service.pid)
    done = subprocess.run(command, env=env, capture_output=True, check=True, text=True)
    time.sleep(_BEHIND_S)
    cpu, _ = meter.read()
    got = json.loads(done.stdout.splitlines()[-1])
    count = max(1, got["requests"])
    return Load(
        per_second=got["requests"] / got["seconds"],
        cpu_us=cpu / count * 1e6,
        core=cpu / got["seconds"],
        p50_ms=got["p50_us"] / 1000,
        p99_ms=got["p99_us"] / 1000,
        failed=got["failed"],
        strayed=got["strayed"],
    )


def send(port: int, requests: Iterable[bytes], connections: int = 16) -> None:
    """Send each request once over so many connections. Raises NotAsMeant where a reply is no 200."""
    uvloop.run(_send(port, iter(requests), connections))


async def _send(port: int, requests: Iterator[bytes], connections: int) -> None:
    async def over_one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            for request in requests:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                text = await reader.readexactly(int(length[1]) if length else 0)
                if not head.startswith(b"HTTP/1.1 200 "):
                    raise NotAsMeant(f"a reply was {(head[9:12] + b' ' + text[:500]).decode(errors='replace')}")

    await asyncio.gather(*(over_one() for _ in range(connections)))


@lru_cache
def _around(model: str, scope: str) -> tuple[str, str]:
    """The body before and after the prompt."""
    messages = [{"role": "system", "content": f"{_SYSTEM} {scope}".rstrip()}, {"role": "user", "content": "PROMPT"}]
    body = {"model": model, "temperature": 0, "max_tokens": 128, "messages": messages}
    prefix, suffix = json.dumps(body, separators=(",", ":")).split("PROMPT")
    return prefix, suffix


@lru_cache
def _words(folder: Path) -> Path:
    """A file of a few thousand English words, out of Python's own language reference: no two prompts are alike."""
    from pydoc_data.topics import topics

    found = sorted(set(re.findall(r"\b[a-z]{4,12}\b", " ".join(topics.values()))))
    path = folder / "words.txt"
    path.write_text("\n".join(found) + "\n")
    return path


def fresh_prompt(subject: Subject, folder: Path, number: int) -> str:
    """A prompt of the kind that wrk.lua makes for a `unique` or `reworded` subject, never asked by it."""
    if subject.texts is not None:
        return next(islice(subject.texts(2_000_000 + number // _PER_SEED), number % _PER_SEED, None))
    chosen = random.Random(number)
    if subject.reworded:
        return "".join(word + " " * chosen.randint(1, _MOST_SPACES) for word in PROMPT.split())
    words = _words(folder).read_text().split()
    return " ".join(chosen.choices(words, k=10)) + f" {2_000_000_000 + number}"
