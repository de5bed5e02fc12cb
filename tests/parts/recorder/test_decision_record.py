"""A decision is made again from its record: the same tiers, for the same reason."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields as fields_of
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.parts.recorder.decision_record import (
    FLAGS,
    BasisError,
    DecisionBasis,
    TierFacts,
    basis_of,
    named,
    outcome_of,
    record_of,
    unnamed,
)
from policies.loader import SHIPPED, policy_files, read_policy
from policies.model import DeployedTier, Policy
from policies.steering import Spent
from routing.decide import Clamp, DecisionInput, NoTierError, TierCost, TierHealth, decide
from routing.difficulty.model import Difficulty
from routing.features import FURTHER, Features
from routing.load.latency import Forecast

CLASSIFIER = "0123456789ab"
ARTEFACTS = {"classifier": CLASSIFIER, "embedder": "static"}
TIERS = ("local", "hosted", "large")

shares = st.floats(0.0, 1.0)
seconds = st.floats(-1.0, 1000.0)
waits = st.floats(0.0, 1000.0)
difficulties = st.none() | st.builds(
    Difficulty,
    st.tuples(shares, shares) | st.tuples(shares, shares, shares),
    st.booleans(),
    st.just(CLASSIFIER),
    st.sampled_from(("", "chat", "maths")),
    st.none() | shares,
    shares,
    st.none() | shares,
)
features = st.builds(
    Features,
    st.just(""),
    st.integers(0, 50),
    st.integers(0, 100_000),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    further=st.frozensets(st.sampled_from(FURTHER)),
    reasoning_above=st.booleans(),
    before=st.none() | shares,
    last_tier=st.integers(0, 2),
)
forecasts = st.none() | st.builds(
    Forecast,
    waits,
    waits,
    waits,
    waits,
    known=st.just(True),
    cold=st.booleans(),
    least_s=waits,
    prior_ttft=st.booleans(),
    prior_whole=st.booleans(),
)


def healths(name: str) -> st.SearchStrategy[TierHealth]:
    capabilities = st.frozensets(st.sampled_from(("tools", "vision", "json", *FURTHER)))
    context = st.none() | st.integers(100, 100_000)
    well = st.builds(TierHealth, st.just(name), capabilities, st.just(1), forecast=forecasts, context=context)
    ill = st.builds(
        TierHealth,
        st.just(name),
        capabilities,
        st.just(1),
        st.sampled_from(("failing", "out of quota, for 3 s")),
        st.booleans(),
        context=context,
    )
    return well | ill


costs = st.builds(TierCost, st.none() | st.integers(0, 100_000), st.none() | shares, waits)
inputs = st.builds(
    DecisionInput,
    difficulties,
    features,
    st.tuples(*map(healths, TIERS)).map(lambda both: {one.name: one for one in both}),
    seconds,
    st.none() | seconds,
    st.none() | st.builds(Clamp, st.none() | st.sampled_from(TIERS), st.none() | st.sampled_from(TIERS)),
    st.booleans(),
    st.integers(0, 200_000),
    st.none()
    | st.dictionaries(st.sampled_from(TIERS), st.builds(TierCost, st.none() | st.just(900), st.none() | shares, waits)),
    st.none() | st.builds(Spent, shares, st.sampled_from(("", *TIERS))),
)


@pytest.fixture(scope="module", params=[file.stem for file in policy_files(SHIPPED)])
def policy(request: pytest.FixtureRequest) -> Policy:
    return read_policy(SHIPPED / f"{request.param}.yaml")[0]


def _decided(policy: Policy, given_: DecisionInput) -> Any:
    try:
        return outcome_of(decide(policy, given_))
    except NoTierError as error:
        return [str(error), error.capable]


@settings(max_examples=20, deadline=None)
@given(inputs)
def test_a_record_decides_as_what_it_records(policy: Policy, made_of: DecisionInput) -> None:
    """Written to JSON and read back, the policy and the input give the decision that they gave, bit for bit."""
    _assert_decides_again(policy, made_of)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(inputs)
def test_many_records_decide_as_what_they_record(policy: Policy, made_of: DecisionInput) -> None:
    """The same of five times as many inputs."""
    _assert_decides_again(policy, made_of)


def _assert_decides_again(policy: Policy, made_of: DecisionInput) -> None:
    _, blob = basis_of(policy, made_of, ARTEFACTS).encode()
    basis = DecisionBasis.decode(blob)
    record = orjson.loads(orjson.dumps(record_of(made_of)))
    again = basis.input_of(record)
    fields, _ = named(record, None)
    assert fields is not None
    columns = {**fields, "health": [defaultdict(type(None), one) for one in fields["health"]]}
    for whole in (fields, columns):
        assert _decided(basis.policy, basis.input_of(unnamed(whole))) == _decided(policy, made_of)
    assert _decided(basis.policy, again) == _decided(policy, made_of)
    assert (again.costs or {}) == (made_of.costs or {})
    assert again.budget_s == made_of.budget_s and again.difficulty == made_of.difficulty


def test_nothing_that_decides_is_left_out() -> None:
    """A field that is added to any of these must be recorded too, or no decision could be made again."""
    assert [field.name for field in fields_of(DecisionInput)] == [
        "difficulty", "features", "health", "budget_s", "ttft_s", "clamp", "holdout", "room", "costs", "spent",
    ]  # fmt: skip
    assert [field.name for field in fields_of(Difficulty)] == [
        "p_right",
        "in_domain",
        "model_version",
        "kind",
        "quantile",
        "p_kind",
        "effort",
    ]
    assert Features._fields == (
        "text",
        "turns",
        "approx_tokens",
        "has_tools",
        "wants_json",
        "has_images",
        "stream",
        "tools",
        "parallel_tools",
        "further",
        "reasoning_above",
        "in_context",
        "earlier",
        "before",
        "last_tier",
    )  # fmt: skip  (the texts, and the tools in detail, decide by the difficulty alone)
    assert [field.name for field in fields_of(TierHealth)] == [
        "name", "capabilities", "endpoints", "unavailable", "failing", "forecast", "context",
    ]  # fmt: skip
    # `tpot_s` decides nothing: the trace names tiers that are too slow by it.
    assert [field.name for field in fields_of(Forecast)] == [
        "ttft_s", "ttft_p95_s", "whole_s", "queue_s", "known", "cold", "least_s", "tpot_s",
        "prior_ttft", "prior_whole",
    ]  # fmt: skip


@pytest.mark.parametrize("marks", range(8))
def test_every_mark_of_a_forecast_has_a_name(marks: int) -> None:
    """A table's row says of the times whether they are a prior's; one of an older table says neither, and nothing."""
    record = [10, 1, 0, 20.0, None, 0, 0, 0, 0, [[0.1, 0.3, 1.0, 0.0, 0.1, marks]]]
    given_, _ = named(record, None)
    assert given_ is not None and unnamed(given_) == record
    for name in ("prior_ttft", "prior_whole"):
        given_["health"][0][name] = None
    assert unnamed(given_)[9][0][5] == marks & 1


def test_flags_keep_their_bits() -> None:
    """A record that was written before a capability was known still means the same."""
    older = ["has_tools", "wants_json", "has_images", "stream", "needs_audio", "needs_files", "needs_web_search"]
    older += ["needs_hosted_tools", "reasoning_above"]
    assert [FLAGS[name] for name in older] == [1 << place for place in range(9)]
    assert sorted(FLAGS.values()) == [1 << place for place in range(len(FLAGS))]
    newer = {"n": 512, "background": 1024, "service_tier_flex": 2048, "service_tier_priority": 4096}
    newer |= {"service_tier_other": 8192, "responses_hosted_tools": 1 << 14, "messages_hosted_tools": 1 << 15}
    newer |= {"messages_web_search": 1 << 16, "file_urls": 1 << 17}
    assert {name: FLAGS[f"needs_{name}"] for name in FURTHER[4:]} == newer


def test_a_record_is_small() -> None:
    """What one request adds is a line of numbers: what they mean, and what many requests share, is in the basis."""
    forecast = Forecast(0.0912345, 0.2123456, 1.4123456, 0.0, known=True, least_s=0.0512345)
    health = {name: TierHealth(name, frozenset({"json"}), 1, forecast=forecast, context=8192) for name in TIERS[:2]}
    difficulty = Difficulty((0.1234567890123, 0.9876543210987), True, CLASSIFIER, "chat", 0.4321)
    made_of = DecisionInput(difficulty, Features("What is the capital of France?", 1, 11), health, 59.98765432)
    record = orjson.dumps(record_of(made_of))
    assert len(record) < 220 and b"France" not in record


def test_a_basis_knows_the_deployment() -> None:
    """The ladder, and why a tier of the policy is missing from it, are part of what decides."""
    deployed = (DeployedTier("local", ("m",), frozenset({"json"})), DeployedTier("hosted", (), frozenset(), "no key"))
    policy = read_policy(SHIPPED / "chat.yaml", deployed)[0]
    name, blob = DecisionBasis(policy, (TierFacts("local", frozenset({"json"}), 1, 8192),), ARTEFACTS).encode()
    read = DecisionBasis.decode(blob)
    assert read.encode() == (name, blob)
    assert read.policy.ladder == ("local",) and read.policy.unconfigured["hosted"].unconfigured == "no key"
    assert read.policy.version == policy.version and read.artefacts == ARTEFACTS
    assert read.policy.route == policy.route


@pytest.mark.parametrize("blob", [b"", b"[]", b'{"v": 2}', b'{"v": 1}', b'{"v": 1, "content": {"surface": 3}}'])
def test_a_damaged_basis_is_refused(blob: bytes) -> None:
    """What cannot be read is an error that says so, never half a basis."""
    with pytest.raises(BasisError):
        DecisionBasis.decode(blob)


def test_a_policy_that_means_something_else_now_is_refused() -> None:
    """The version is the hash of the content: one that does not fit belongs to another version of Tierline."""
    policy = read_policy(SHIPPED / "chat.yaml")[0]
    basis = orjson.loads(DecisionBasis(policy, (), {}).encode()[1])
    basis["content"]["slo"]["deadline"] = "61s"
    with pytest.raises(BasisError, match="means something else"):
        DecisionBasis.decode(orjson.dumps(basis))
