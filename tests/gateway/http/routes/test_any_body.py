"""Random members in bodies of embeddings and text completions: an answer, or an error in the envelope, never a 5xx."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.support.app import in_process
from tests.support.upstream import Reply, Upstream

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3.5, 1e9, 10**6,
    "", "a", "chat", "auto", "float", "base64", "\0", "é" * 10, "x" * 300,
    [], ["a"], ["a", 1], ["a", "b"], [1, 2], [[1], [2]], [[]], [None],
    {}, {"a": 1}, {"include_usage": True},
)  # fmt: skip
BODIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "/v1/completions": (
        {"model": "chat", "prompt": "x"},
        (
            "model", "prompt", "suffix", "echo", "best_of", "logprobs", "n", "stop", "stream", "stream_options",
            "max_tokens", "temperature", "seed", "user", "logit_bias", "top_k", "messages", "tools", "metadata",
        ),
    ),
    "/v1/embeddings": (
        {"model": "auto", "input": ["a", "b"]},
        ("model", "input", "encoding_format", "dimensions", "user", "truncate"),
    ),
}  # fmt: skip


async def test_no_body_breaks_the_gateway(local_upstream: Upstream, hosted_upstream: Upstream, tmp_path: Path) -> None:
    rng = random.Random(5)
    local_upstream.default = Reply(text="one two three")
    statuses = []
    async with in_process(tmp_path, local_upstream.url, hosted_upstream.url) as app:
        for _ in range(200):
            path = rng.choice(list(BODIES))
            body, names = BODIES[path]
            given = body | {name: rng.choice(VALUES) for name in rng.sample(names, rng.randrange(3))}
            reply = await app.client.post(path, json=given)
            statuses.append(reply.status_code)
            assert reply.status_code < 500, given
            if reply.is_error:
                assert set(reply.json()["error"]) == {"message", "type", "param", "code"}, given
    assert 40 < statuses.count(200) < 160, "both are tried"
