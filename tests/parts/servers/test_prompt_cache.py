"""What is known of providers' prompt caches, by kind, provider and model."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.backends import BackendConfig
from gateway.parts.prices.model_facts import shipped_facts
from gateway.parts.servers.prompt_cache import ProviderCacheAsk, ProviderCacheFacts

CLAUDES = {
    "claude-opus-5-5": 512, "claude-fable-5-1": 512, "claude-sonnet-5-5": 1024, "claude-haiku-5-5": 1024,
    "claude-opus-4-8": 1024, "claude-opus-4-7": 2048, "claude-opus-4-6": 4096, "claude-haiku-4-5-20251001": 4096,
    "claude-sonnet-4-6": 1024, "claude-3-5-haiku-latest": 2048, "anthropic.claude-opus-4-1-v1:0": 1024,
}  # fmt: skip


def _facts(kind: str, provider: str, model: str, omit: tuple[str, ...]) -> ProviderCacheFacts | None:
    script = {"script": [{"reply": {}}]} if kind == "scripted" else {}
    config = {"kind": kind, "provider": provider, "model": model, "omit": omit, **script}
    return BackendConfig.model_validate(config).prompt_cache


@pytest.mark.parametrize(("model", "least"), CLAUDES.items())
def test_claude_is_asked_by_markers_from_its_least_length_on(model: str, least: int) -> None:
    """Wherever it runs."""
    facts = _facts("anthropic", "", model, ())
    assert facts is not None and (facts.form, facts.least) == ("markers", least)
    assert not facts.worth(least - 1, 0) and facts.worth(least, 0) and facts.worth(0, 100)


@pytest.mark.parametrize(
    ("kind", "provider", "model", "omit", "form"),
    [
        ("openai", "openai", "gpt-6-luna", (), "key"),
        ("responses", "azure", "gpt-5.4", (), "key"),
        ("openai", "openai", "gpt-5.4", ("prompt_cache_key",), None),
        ("openai", "", "gpt-5.4", (), None),
        ("openai", "openrouter", "anthropic/claude-sonnet-5.5", (), "field"),
        ("openai", "openrouter", "openai/gpt-6-luna", (), None),
        ("openai", "groq", "openai/gpt-oss-20b", (), None),
        ("anthropic", "", "kimi-k3", (), None),
        ("anthropic", "anthropic", "claude-opus-5", ("cache_control",), None),
        ("scripted", "", "scripted", (), None),
    ],
)
def test_nothing_is_asked_of_a_provider_that_is_not_known_to_take_it(
    kind: str, provider: str, model: str, omit: tuple[str, ...], form: str | None
) -> None:
    """Nor what the config leaves out."""
    facts = _facts(kind, provider, model, omit)
    assert (None if facts is None else facts.form) == form


def test_a_day_is_asked_of_the_models_that_have_it() -> None:
    """From 4.1 to 5.5; later ones refuse the field, and small ones are not in the guide's list."""
    named = [name for name in shipped_facts().models["openai"] if name.startswith("gpt-")]
    keeping = {name for name in named if (facts := _facts("openai", "openai", name, ())) and facts.longest}
    assert {"gpt-4.1", "gpt-5", "gpt-5.1", "gpt-5.2", "gpt-5.4", "gpt-5.5"} <= keeping
    assert not any(name.startswith(("gpt-4o", "gpt-5.6", "gpt-6", "gpt-5-mini", "gpt-5.3")) for name in keeping)


def test_openrouter_is_asked_by_one_field_unless_the_client_marks_parts() -> None:
    """It sets the markers itself; a question that stands alone asks for none."""

    def fields(content: Any, *, goes_on: bool = True) -> Any:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": content}]}
        ProviderCacheAsk("field", 1024, "key", goes_on, "").add_fields(body)
        return body.get("cache_control")

    assert fields("hello") == {"type": "ephemeral"}
    assert fields([{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]) is None
    assert fields("hello", goes_on=False) is None
