"""Refusals of real servers, each with whose fault it is, and what this gateway takes each for.

`tests/fixtures/refusals.jsonl` has the rows that rules were written by; those of `refusals_held_out.jsonl` were set
apart before, by the hash of the row, and are not to be read when a rule is changed; `refusals_later.jsonl` has what was
found after that, some of it by asking a real llama.cpp server. A row has the `server`, the
`status` and `body` of its reply, the members that its request had beside a question (`asks`), where the words are from
(`source`: an issue, or the server's documents), and the `fault`:

    field     the model lacks a field or a value of it: the same call without it
    limit     the limit of the reply is too high: the same call with a lower one
    too_long  the prompt is longer than the model's context: the next tier
    unfit     the server or model cannot do it: the next tier
    request   the caller's, wherever it is sent
    others    as `gateway.backends.blame` has them
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.backends.base import BackendRequest, BadStatus, ContextExceeded, OutputRefused
from gateway.backends.http1_transport import Http1Transport
from gateway.backends.openai import OpenAIBackend
from gateway.parts.servers.refused_fields import RefusedFields
from tests.support.upstream import Received, Reply, Upstream

FIXTURES: Final = Path(__file__).parents[1] / "fixtures"
OPEN: Final = FIXTURES / "refusals.jsonl"
HELD_OUT: Final = FIXTURES / "refusals_held_out.jsonl"
LATER: Final = FIXTURES / "refusals_later.jsonl"
_QUESTION: Final = [{"role": "user", "content": "hi"}]
_RIGHT: Final = {
    "limit": {"limit", "too_long"},
    "unfit": {"unfit", "unknown", "field"},
    "request": {"request", "unknown"},
}


class Judged(NamedTuple):
    """What the gateway takes a refusal for, and how its request would end with a healthy tier behind."""

    server: str
    fault: str
    taken_for: str

    @property
    def blamed(self) -> bool:
        """Whether it is taken for what it is; words that nobody knows may be an inability or the caller's fault."""
        return self.taken_for in _RIGHT.get(self.fault, {self.fault})

    @property
    def answered(self) -> bool:
        """Whether the request is answered: by this server without a field, or by the next tier."""
        return self.taken_for not in ("request", "content")

    @property
    def right(self) -> bool:
        """Whether a request that can be answered is answered, or the refusal is blamed on whose fault it is."""
        return self.blamed or (self.answered and self.fault not in ("request", "content"))


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


async def judged(row: dict[str, Any], upstream: Upstream) -> Judged:
    """Send a row's request to a server that refuses it as long as it has what is refused, over a real socket."""
    upstream.reset()
    reply = Reply(
        status=row["status"], headers={"Content-Type": "application/json"}, body=row["body"].encode("utf-8", "replace")
    )
    asks: dict[str, Any] = row.get("asks", {})
    one_of = asks.keys() - {"tools", "stream", "messages"} if row["fault"] == "field" else set()

    def refuses(received: Received) -> bool:
        return not one_of or one_of <= received.body.keys()

    upstream.on(refuses).reply(reply)
    transport = Http1Transport(
        f"{upstream.url}/chat/completions", max_in_flight=1, connect_timeout_s=5, max_reply=1 << 20
    )
    backend = OpenAIBackend(transport, model="m", key="sk", refused=RefusedFields())
    body = {"messages": _QUESTION, **asks}
    try:
        await backend.complete(BackendRequest(body, ask_logprobs=False))
    except ContextExceeded:
        return Judged(row["server"], row["fault"], "too_long")
    except OutputRefused:
        return Judged(row["server"], row["fault"], "limit")
    except BadStatus as error:
        return Judged(row["server"], row["fault"], error.blame)
    finally:
        await backend.aclose()
    return Judged(row["server"], row["fault"], "field")


async def judged_all(path: Path) -> list[Judged]:
    """Return the verdicts on all rows of a file."""
    with Upstream() as upstream:
        return [await judged(row, upstream) for row in rows(path)]


def shares(verdicts: list[Judged]) -> tuple[float, float]:
    """Return the share that ends right, and that which is blamed exactly."""
    count = len(verdicts)
    return sum(one.right for one in verdicts) / count, sum(one.blamed for one in verdicts) / count
