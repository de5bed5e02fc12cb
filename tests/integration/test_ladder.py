"""The ladder is made of the configured tiers, and stored answers belong to its models. Real gateways, one store.

Three deployments with the same policies: `alone` has no key for the hosted tier, `keyed` has, and `renamed` is as
`alone` with another local model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import httpx2
import pytest

from tests.integration.test_path import HARD, SHIPPED_POLICIES, ask, text_of, traced
from tests.support.gateway import Gateway, config, serve
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

ITALY, SAME, SPAIN = (f"{what} capital city of {of}?" for what, of in (
    ("What is the", "Italy"), ("What's the", "Italy"), ("What is the", "Spain")))  # fmt: skip
LACKS = "hosted is not configured: HOSTED_KEY is not set"
DEBUG = {"x-tierline-debug": "1"}


@dataclass
class Deployments:
    alone: Gateway
    keyed: Gateway
    renamed: Gateway


@pytest.fixture(scope="module")
def _deployments(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployments]:
    local, hosted = (upstream.url for upstream in _upstreams)
    tiers = config(local, None)["tiers"]
    tiers[0]["backends"][0]["model"] = "smaller"
    start = partial(serve, local=local, store_url=_store.url, policies=SHIPPED_POLICIES)
    with (
        start(tmp_path_factory.mktemp("alone")) as alone,
        start(tmp_path_factory.mktemp("keyed"), hosted=hosted) as keyed,
        start(tmp_path_factory.mktemp("renamed"), settings={"tiers": tiers}) as renamed,
    ):
        yield Deployments(alone, keyed, renamed)


@pytest.fixture
def at(
    _deployments: Deployments, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream
) -> Deployments:
    local_upstream.default = Reply(text="Rome.", logprob=-0.01)
    hosted_upstream.default = Reply(text="It is Rome.", logprob=-0.01)
    return _deployments


def path(gateway: Gateway, question: str) -> str:
    return ask(gateway, question).headers["x-tierline-path"]


def kept(gateway: Gateway, question: str) -> None:
    until(lambda: path(gateway, question) == "cache-exact", 5, f"a hit for {question}")


def cached(gateway: Gateway, question: str, model: str = "chat") -> httpx2.Response | None:
    """The answer that the cache has, exactly or by meaning, if any; no model is called for it."""
    reply = ask(gateway, question, model=model, headers={"x-tierline-cache": "only-if-cached"})
    return reply if reply.status_code == 200 else None


def stored(gateway: Gateway, question: str) -> bool:
    return cached(gateway, question) is not None


@pytest.mark.parametrize("model", ["chat", "batch"])
def test_one_tier_alone_answers_directly_and_is_remembered(at: Deployments, store: LocalStore, model: str) -> None:
    """Easy or hard, sure or not: it is the last of its ladder. The header and the trace say what is missing."""
    first = ask(at.alone, ITALY, model=model, headers=DEBUG)
    assert (first.headers["x-tierline-path"], text_of(first.content)) == ("direct", "Rome.")
    assert LACKS in first.headers["x-tierline-reason"]
    record = traced(store, first)
    assert [LACKS in hop["attributes"]["tierline.reason"] for hop in record["hops"] if hop["name"] == "route"] == [True]
    assert record["hops"][-1]["attributes"]["tierline.cache.outcome"] == "stored"
    assert ask(at.alone, ITALY, model=model).headers["x-tierline-path"] == "cache-exact"
    rephrased = until(lambda: cached(at.alone, SAME, model), 5, "an answer by meaning")
    assert (rephrased.headers["x-tierline-path"], text_of(rephrased.content)) == ("cache-semantic", "Rome.")
    assert ask(at.alone, SPAIN, model=model).headers["x-tierline-path"] == "direct"


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_a_doubtful_answer_of_the_last_configured_tier_goes_out_unjudged(
    at: Deployments, store: LocalStore, local_upstream: Upstream, stream: bool
) -> None:
    """Nothing could replace it, so it is no worse than any last tier's: direct, and kept."""
    local_upstream.default = Reply(text="um, er, ah", logprob=-2.0)
    answers = [ask(at.alone, question, stream=stream) for question in (HARD, "Say it wrong.")]
    assert [(one.headers["x-tierline-path"], text_of(one.content)) for one in answers] == [("direct", "um, er, ah")] * 2
    for answer in answers:
        traced(store, answer)  # its write to the cache is done, and cannot come into the next test
    kept(at.alone, HARD)
    assert "logprobs" not in local_upstream.requests[0].body


def test_only_what_is_configured_can_be_degraded(at: Deployments) -> None:
    """/readyz lists the tier with what it lacks, and is ready."""
    ready = httpx2.get(f"{at.alone.origin}/readyz")
    assert (ready.status_code, ready.json()["status"], ready.json()["degraded"]) == (200, "ready", [])
    assert ready.json()["tiers"]["hosted"]["state"] == "unconfigured: HOSTED_KEY is not set"
    assert ready.json()["unconfigured_surfaces"] == {"research": "hosted is not configured: HOSTED_KEY is not set"}


def test_who_wants_the_missing_tier_is_told_which_variable_is_not_set(at: Deployments) -> None:
    """By a pin, a least tier, or for what only that tier can do; a limit above leaves the others."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    shown = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]
    refused = [
        ask(at.alone, ITALY, model="tier:hosted"),
        ask(at.alone, ITALY, headers={"x-tierline-min-tier": "hosted"}),
        ask(at.alone, "", messages=shown),
    ]
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
        assert answer.json()["error"]["message"] == f"No tier can answer this: {LACKS}."
        assert answer.headers["x-should-retry"] == "false"
    params = [answer.json()["error"]["param"] for answer in refused]
    assert params == [None, None, "messages[0].content[1]"]
    assert ask(at.alone, ITALY, headers={"x-tierline-max-tier": "hosted"}).headers["x-tierline-tier"] == "local"


def test_a_stronger_tier_begins_with_an_empty_cache(at: Deployments) -> None:
    """What the small model said alone is not served with the key there, and nothing of then without it."""
    kept(at.alone, ITALY)
    until(lambda: stored(at.alone, SAME), 5, "an answer by meaning")
    assert not stored(at.keyed, ITALY)
    assert not stored(at.keyed, SAME)
    kept(at.keyed, SPAIN)
    assert not stored(at.alone, SPAIN)
    assert path(at.alone, ITALY) == "cache-exact"


def test_another_model_never_serves_the_old_ones_answers(at: Deployments) -> None:
    """Exactly or by meaning; with the old model back, its answers are there."""
    kept(at.alone, ITALY)
    assert not stored(at.renamed, ITALY)
    assert not stored(at.renamed, SAME)
    assert ask(at.renamed, ITALY).headers["x-tierline-model"] == "smaller"
    assert path(at.alone, ITALY) == "cache-exact"


def test_an_edited_policy_keeps_its_answers_until_what_makes_them_is_edited(at: Deployments) -> None:
    """A threshold, an objective or the hold-out costs no stored answer; another limit for the output does."""
    kept(at.alone, ITALY)
    other = "Say hello to the crew."
    file, text = at.alone.policies / "chat.yaml", SHIPPED_POLICIES["chat"]

    def edited(*changes: tuple[str, str]) -> None:
        now, before = text, ask(at.alone, other).headers["x-tierline-policy"]
        for old, new in changes:
            assert old in now
            now = now.replace(old, new)
        file.write_text(now)
        until(lambda: ask(at.alone, other).headers["x-tierline-policy"] != before, 10, "the edited policy")

    try:
        edited(
            ("confidence_below: 0.62", "confidence_below: 0.75"),
            ("p95: 6s", "p95: 7s"),
            ("max_wait: 1s", "max_wait: 2s"),
        )
        assert stored(at.alone, ITALY)
        assert stored(at.alone, SAME)
        edited(("output: {max_tokens: 4096}", "output: {max_tokens: 77}"))
        assert not stored(at.alone, ITALY)
        assert not stored(at.alone, SAME)
    finally:
        edited()
    assert stored(at.alone, ITALY)
