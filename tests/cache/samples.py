"""Requests, policies and answers for the tests of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cache.entry import StoredAnswer
from cache.planning.volatile import volatility_of
from policies.model import Policy


@dataclass(frozen=True, slots=True)
class Facts:
    """What the gateway would have read off a plain question."""

    text: str = ""
    turns: int = 1
    approx_tokens: int = 10
    has_tools: bool = False
    has_images: bool = False
    wants_json: bool = False
    stream: bool = False


def body(question: str, **fields: Any) -> dict[str, Any]:
    """A chat-completions body with a system prompt and one question."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    return {"model": "chat", "messages": messages, **fields}


def policy(version: str = "1234567", never: tuple[str, ...] = (), **cache: Any) -> Policy:
    """A policy with both caches, unless `cache` says otherwise."""
    sections = {"exact": {"ttl": "24h"}, "semantic": {"ttl": "6h", "min_similarity": 0.85}, "never": never, **cache}
    return Policy.model_validate(
        {
            "surface": "chat",
            "slo": {"deadline": "8s"},
            "tiers": ["local", "hosted"],
            "route": {"start": {"local": "otherwise"}},
            "cache": {name: section for name, section in sections.items() if section is not None},
            "version": version,
        }
    )


def doubtful_text() -> str:
    """A question of which the head that ships does not know whether its answer changes with time."""
    places = ("a shop", "the fountain", "my office", "the old station", "a port", "the garden", "our team", "the canal")
    asked = (
        "How full is {}?",
        "Who leads {}?",
        "Where is {} going?",
        "How does {} do?",
        "Who runs {}?",
        "What is at {}?",
    )
    texts = (question.format(place) for question in asked for place in places)
    return next(text for text in texts if volatility_of(text) == "doubtful")


def answer(text: str = "Rome.", tier: str = "local", **choice: Any) -> StoredAnswer:
    """A finished answer of one choice."""
    message = {"role": "assistant", "content": text, "refusal": None}
    completion = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None, **choice}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    }
    return StoredAnswer(completion, tier, f"{tier}-1", "model-1", 0.9, 0.0001)
