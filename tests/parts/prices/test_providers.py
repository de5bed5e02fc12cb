"""What the environment offers, and the hosted tier that the default config makes of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gateway.config.backends import retirement
from gateway.config.launch import Launch
from gateway.config.loader import load_deployment
from gateway.parts.local.plan import without_keys
from gateway.parts.prices.model_facts import Provider, known_providers, shipped_facts

KEY = "sk-canary-of-a-test"


def test_anthropic_s_key_alone_gives_an_anthropic_rung() -> None:
    """The default config's hosted tier is then a small model of Anthropic's, with its price, by its own API."""
    (hosted,) = load_deployment(None, {"ANTHROPIC_API_KEY": KEY}).tiers[1].backends
    assert (hosted.kind, hosted.model, hosted.configured) == ("anthropic", "claude-haiku-5-5", True)
    assert hosted.price is not None and (hosted.price.input, hosted.price.output) == (0.1, 0.5)
    assert not hosted.logprobs


def test_openai_s_key_counts_before_any_other() -> None:
    """The tier is as it was, whatever other keys there are; its model's facts say whether it has log-probabilities."""
    environ = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}
    (hosted,) = load_deployment(None, environ).tiers[1].backends
    assert (hosted.kind, hosted.model, hosted.logprobs) == ("openai", "gpt-6-luna", True)
    (hosted,) = load_deployment(None, {**environ, "TIERLINE_HOSTED_MODEL": "gpt-6.1-sol"}).tiers[1].backends
    assert not hosted.logprobs


@pytest.mark.parametrize(
    ("environ", "model", "url"),
    [
        ({"OPENAI_API_KEY": KEY}, "gpt-6.1-sol", "https://api.openai.com/v1"),
        ({"ANTHROPIC_API_KEY": KEY}, "claude-sonnet-5-5", "https://api.anthropic.com/v1"),
        ({"ANTHROPIC_API_KEY": KEY, "TIERLINE_LARGE_MODEL": "claude-opus-5-5"}, "claude-opus-5-5", None),
        (
            {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://gpu/v1", "TIERLINE_LARGE_MODEL": "big"},
            "big",
            "http://gpu/v1",
        ),
        ({"OPENAI_API_KEY": KEY, "TIERLINE_HOSTED_MODEL": "gpt-6.1-sol"}, None, None),
        (
            {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://gpu/v1", "TIERLINE_LARGE_KEY": KEY},
            "gpt-6.1-sol",
            "https://api.openai.com/v1",
        ),
        ({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://gpu/v1"}, None, None),
        ({"AZURE_OPENAI_API_KEY": KEY, "AZURE_OPENAI_ENDPOINT": "https://acme.openai.azure.com/"}, None, None),
        ({"OPENAI_API_KEY": KEY, "TIERLINE_LARGE_BASE_URL": "https://other/v1"}, None, None),
        ({"ANTHROPIC_API_KEY": KEY, "TIERLINE_LARGE_BASE_URL": "http://o", "TIERLINE_LARGE_MODEL": "b"}, None, None),
        (
            {"OPENAI_API_KEY": KEY, "TIERLINE_LARGE_BASE_URL": "https://o/v1", "TIERLINE_LARGE_KEY": "k"},
            "gpt-6.1-sol",
            "https://o/v1",
        ),
        ({}, None, None),
    ],
    ids=lambda value: value and "-".join(value) if isinstance(value, dict) else "",
)
def test_the_large_tier_is_there_where_its_model_is_known(
    environ: dict[str, str], model: str | None, url: str | None
) -> None:
    """By the hosted tier's key, at its server alone. Whoever chose another model or server names the large one too."""
    large = load_deployment(None, environ).tiers[2]
    (backend,) = large.backends
    assert large.configured == (model is not None)
    assert not backend.wants_local_model
    if model is not None:
        assert backend.model == model
        assert url is None or backend.base_url == url


def test_a_process_without_keys_sees_the_same_tier() -> None:
    """The ledger and the console, which get no key, load the deployment that the gateway does."""
    environ = {"ANTHROPIC_API_KEY": KEY, "GROQ_API_KEY": KEY}
    deployment = load_deployment(None, environ)
    known = without_keys(Launch(), deployment, environ)
    assert KEY not in known.values()
    (hosted,) = load_deployment(None, known).tiers[1].backends
    assert (hosted.kind, hosted.model, hosted.configured) == ("anthropic", "claude-haiku-5-5", True)


def test_azure_s_key_needs_its_address() -> None:
    """Each customer of Azure has a URL of their own: without it the tier stays unconfigured."""
    assert not load_deployment(None, {"AZURE_OPENAI_API_KEY": KEY}).tiers[1].configured
    environ = {"AZURE_OPENAI_API_KEY": KEY, "AZURE_OPENAI_ENDPOINT": "https://acme.openai.azure.com/"}
    (hosted,) = load_deployment(None, environ).tiers[1].backends
    assert hosted.base_url == "https://acme.openai.azure.com/openai/v1"
    assert hosted.price is not None


@pytest.mark.parametrize("provider", known_providers().providers, ids=lambda provider: provider.name)
def test_what_is_proposed_has_a_price_and_stays(provider: Provider) -> None:
    """No model in the file is one that retires within 90 days, and its price is known, but at OpenRouter."""
    facts, url = shipped_facts(), provider.base_url or "https://acme.openai.azure.com/openai/v1"
    for model in (provider.small, provider.large):
        known = facts.find(url, model)
        if known is None:
            assert provider.name == "OpenRouter", f"{model} of {provider.name}"
            continue
        assert known.price is not None, f"{model} of {provider.name}"
        assert known.retires is None or known.retires - facts.dated > timedelta(days=90)
        assert not retirement(known.retires)
