"""How long a prompt, a reply and a context are, in the words of each server, and in Anthropic's."""

from __future__ import annotations

import pytest

from gateway.dialects.told_lengths import Lengths
from gateway.parts.apis.dialects.messages.paths import in_anthropics_words
from gateway.parts.servers.told_lengths import lengths_in
from tests.support.refusals import OPEN, rows


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "request (8720 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "prompt is too long: 8720 tokens > 4096 maximum",
        ),
        (
            "Prompt too long: 32799 tokens exceeds max context window of 32768 tokens",
            "prompt is too long: 32799 tokens > 32768 maximum",
        ),
        (
            "This model's maximum context length is 32768 tokens. However, you requested 41000 tokens (40000 in the "
            "messages, 1000 in the completion).",
            "prompt is too long: 40000 tokens > 32768 maximum",
        ),
        (
            "This model's maximum context length is 262144 tokens. However, you requested 262462 tokens (230462 in the "
            "messages, 32000 in the completion).",
            "input length and `max_tokens` exceed context limit: 230462 + 32000 > 262144, decrease input length or "
            "`max_tokens` and try again",
        ),
        (
            "Your input exceeds the context window of this model.",
            "prompt is too long (Your input exceeds the context window of this model)",
        ),
        ("", "prompt is too long"),
    ],
)
def test_what_is_too_long_in_anthropics_words(message: str, sentence: str) -> None:
    """Agents act on these two sentences; figures that were told are in them."""
    assert in_anthropics_words(message) == sentence
    assert in_anthropics_words(sentence) == sentence


def test_the_figures_of_real_servers() -> None:
    """Where prompt and context are both told, the prompt is the longer one, unless only the limit was too high."""
    told = 0
    for row in rows(OPEN):
        lengths = lengths_in(row["body"].encode())
        if row["fault"] in ("too_long", "limit") and lengths.prompt is not None and lengths.context is not None:
            told += 1
            prompt, _, context, *_ = lengths
            fits = prompt is not None and context is not None and prompt < context
            assert fits is (row["fault"] == "limit"), row
    assert told >= 15


def test_figures_are_read_at_the_beginning_alone() -> None:
    """What an error quotes of the request, further on, is no figure of the server's; nor is a number of any length."""
    assert lengths_in(b"x" * 600 + b"maximum context length is 16 tokens") == Lengths()
    assert lengths_in(b"maximum context length is 12345678901234 tokens").context in (None, 123456789)
