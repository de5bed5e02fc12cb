"""What is known of a model by its name."""

from __future__ import annotations

import pytest

from gateway.parts.apis.dialects.messages.models import facts_of_model


@pytest.mark.parametrize(
    ("name", "max_output", "thinking", "efforts", "sampling"),
    [
        ("claude-3-haiku-20240307", 4096, "budget", 0, True),
        ("claude-3-7-sonnet-latest", 64_000, "budget", 0, True),
        ("claude-opus-4-20250514", 32_000, "budget", 0, True),
        ("claude-sonnet-4@20250514", 64_000, "budget", 0, True),
        ("claude-opus-4-5-20251101", 64_000, "budget", 3, True),
        ("claude-haiku-4-5", 64_000, "budget", 0, True),
        ("anthropic.claude-opus-4-6-v1:0", 128_000, "both", 4, True),
        ("anthropic/claude-sonnet-4.6", 128_000, "both", 4, True),
        ("claude-opus-4-8", 128_000, "adaptive", 5, False),
        ("claude-sonnet-5-5", 128_000, "adaptive", 5, False),
        ("claude-opus-5-5", 128_000, "always", 5, False),
        ("claude-mythos-preview", 128_000, "always", 5, False),
        ("claude-opus-7", 128_000, "always", 5, False),
        ("deepseek-chat", None, "budget", 0, True),
        ("claude", None, "budget", 0, True),
    ],
)
def test_facts(name: str, max_output: int | None, thinking: str, efforts: int, sampling: bool) -> None:
    facts = facts_of_model(name)
    assert (facts.max_output, facts.thinking, len(facts.efforts), facts.sampling) == (
        max_output,
        thinking,
        efforts,
        sampling,
    )
    assert facts.prefill is (max_output != 128_000)
    assert facts.default_output == (max_output or 8192)
