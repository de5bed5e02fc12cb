"""List the ways to spend more than a budget that `tests.bench.overspend` tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

BUDGET_USD: Final = 0.05
JUDGE_USD: Final = 0.01
"""What the judge of all tenants may cost in a day."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way: its name, its path and body, how many requests at once, and how the client leaves."""

    name: str
    path: str = "/v1/chat/completions"
    more: Mapping[str, Any] | None = None
    at_once: int = 20
    headers: Mapping[str, str] | None = None
    budget: float = BUDGET_USD
    answered: int = 0
    """How many answers are waited for, one after another, before the clients begin to leave."""
    leaves: bool = False
    """Whether the client leaves 50 ms before the answer, once the provider has its request."""
    trouble: str = ""
    """What the store meets in the first two rounds, or the workers in the first; such a way runs alone."""
    socket: bool = False
    """Whether each request comes over a WebSocket of its own."""
    own_keys: bool = False
    """Whether the requests have keys that a person made with a token, and the token, whose budget counts for all."""
    judged: bool = False
    """Whether the budget is one tenant's share of the judge's day, and spent once the judge is not asked any more."""
    refused: bool = False
    """Whether every request must be refused, as nobody knows what it costs."""
    must_be: str = ""
    """Where the bound is another by design: the document that says so."""

    @property
    def tenant(self) -> str:
        """The tenant that has the way's budget, but for a person's."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())


def said(text: str) -> list[dict[str, Any]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": text}]


_FILE: Final = {"type": "file", "file": {"file_id": "file-1"}}
_PICTURE: Final = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
_MARK: Final = {"type": "text", "text": "MARK"}
_IMAGES: Final = "/v1/images/generations"
_IMAGE: Final = {"prompt": "MARK", "messages": None}
_WORDS: Final = {"input": "MARK " + "word " * 200, "messages": None}
_INPUT: Final = {"input": "MARK", "messages": None, "store": False}
_FILES: Final = {"messages": [{"role": "user", "content": [_MARK, _FILE]}]}
_LEFT: Final[dict[str, Any]] = {"leaves": True, "answered": 22, "budget": 0.2}
"""Cold, one call that is given up is charged 2,000 tokens: what answers have is learnt first."""
_CAP: Final = "policies/README.md, session.usd"
WAYS: Final = (
    Way("in turn", at_once=1),
    Way("200 at once, no max_tokens", at_once=200),
    Way("max_tokens", more={"max_tokens": 60}),
    Way("n: 8", more={"n": 8}),
    Way("dense text", more={"messages": said("MARK " + "%$#@!{}[]" * 60)}),
    Way("pictures by URL", more={"messages": [{"role": "user", "content": [_MARK, _PICTURE]}]}),
    Way("messages", "/v1/messages", {"max_tokens": 4000}),
    Way("responses", "/v1/responses", _INPUT),
    Way("background", "/v1/responses", {"input": "MARK", "messages": None, "background": True}),
    Way("compact", "/v1/responses/compact", {"input": "MARK", "messages": None}),
    Way("embeddings", "/v1/embeddings", _WORDS),
    Way("a new end user each time", more={"user": "NUMBER"}),
    Way("file ids, 150 at once", more=_FILES, at_once=150),
    Way("file ids, 8 at once", more=_FILES, at_once=8),
    Way("file ids, in turn", more=_FILES, at_once=1),
    Way("images, n: 10", _IMAGES, {**_IMAGE, "n": 10}),
    Way("audio of 3 MiB", "/v1/audio/transcriptions", at_once=5),
    Way("batches", "/v1/batches", _IMAGE, at_once=5, refused=True),
    Way("images, deadline 300 ms", _IMAGES, _IMAGE, headers={"x-tierline-deadline-ms": "300"}),
    Way("images, left early", _IMAGES, _IMAGE, leaves=True),
    Way("embeddings, left early", "/v1/embeddings", _WORDS, leaves=True),
    Way("max_tokens, left early", more={"max_tokens": 60}, leaves=True),
    Way("chat, left early", **_LEFT),
    Way("messages, left early", "/v1/messages", {"max_tokens": 4000}, **_LEFT),
    Way("responses, left early", "/v1/responses", _INPUT, **_LEFT),
    Way("stream, left before its first token", more={"stream": True}, **_LEFT),
    Way("long context at its own price", more={"model": "long", "messages": said("MARK " + "word " * 5000)}),
    Way("Claude stream, cut, one-hour writes", more={"model": "claude", "stream": True}, at_once=1),
    Way(
        "session cap, 100 at once",
        more={"model": "capped"},
        at_once=100,
        budget=5.0,
        must_be=_CAP,
    ),
    Way("keys made by a person's own token", at_once=8, budget=0.01, own_keys=True),
    Way("socket, left before its first token", "/v1/responses", _INPUT, socket=True, **_LEFT),
    Way("four workers killed, 24 at once", more={"max_tokens": 60}, at_once=24, budget=0.2, trouble="workers"),
    Way("two price sources, 4 times apart", more={"model": "sources"}),
    Way("judge, by one of several tenants", more={"model": "judged"}, budget=JUDGE_USD / 2, judged=True),
    Way("llama.cpp, n: 2", more={"n": 2}),
    Way("the store is frozen, twice", at_once=5, trouble="freeze"),
    Way("the store is full, twice", at_once=5, trouble="fill"),
    Way("the store is killed, twice", at_once=5, trouble="kill"),
    Way("the store loses its data, twice", at_once=5, trouble="flush"),
)
QUICK: Final = ("max_tokens", "n: 8", "images, left early", "max_tokens, left early")
