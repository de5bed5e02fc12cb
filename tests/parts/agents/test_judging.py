"""What an answer is judged by, on the whole path: a head, the raw score, a second sample, a schema, or nothing."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import redis

from gateway.parts.agents.scorer import WHOLE
from routing.confidence import calls
from tests.integration.test_path import HARD, ask, text_of, traced
from tests.parts.agents.test_scorer import written
from tests.support.claims import claiming_all
from tests.support.gateway import Gateway, config, serve
from tests.support.heads import mean_scorer, write_head
from tests.support.store import LocalStore
from tests.support.strict_decisions import StrictDecisions
from tests.support.upstream import Reply, ToolCall, Upstream, error_reply
from tests.support.wait import until

POLICY = """
surface: {surface}
slo: {{deadline: 20s}}
holdout: 0
tiers: [{surface}, hosted]
route: {{classifier: none, start: {{{surface}: otherwise}}}}
escalate:
  when: {{confidence_below: 0.5, uncalibrated_below: 0.8, invalid: [json, json_schema, tool_args, tool_calls]}}
  stream: {{hold_tokens: 8, hold_max: 2s}}
"""
UNSCORED = "  verify: [logprobs, judge, agreement]\n"
AGREEMENT = "  agreement: {samples: 1, temperature: 0.7}\n"
JUDGE = "  verify: [logprobs, judge]\n  judge: {{backend: {}, within: {}}}\n"
DOUBTFUL = Reply(text="Rome, I should think.", logprob=-0.9)
"""Of a token probability of 0.41: the raw score would not do, and the head of `model_with_head` is 0.9 sure."""
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def decisions() -> Iterator[StrictDecisions]:
    with StrictDecisions() as server:
        yield server


@pytest.fixture(scope="module")
def judging(
    _upstreams: tuple[Upstream, Upstream],
    _store: LocalStore,
    decisions: StrictDecisions,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    """A surface for each kind of backend, all of them the local upstream; behind each stands the hosted one."""
    local, hosted = _upstreams
    folder = tmp_path_factory.mktemp("judging")
    scorer = mean_scorer(4.0, 2.0)
    head = write_head(folder / "head.json", "headed", alternatives=5, whole=scorer, first_8=scorer)
    informed = write_head(folder / "informed.json", "informed", prior_weight=1.0, whole=scorer)
    tiers = config(local.url, hosted.url)["tiers"]
    plain = tiers[0]["backends"][0]
    silent = plain | {"logprobs": False, "price": {"input": 0, "output": 1}}
    kinds = {
        "headed": plain | {"model": "headed", "confidence_head": str(head)},
        "informed": plain | {"model": "informed", "confidence_head": str(informed)},
        "raw": plain,
        "mute": silent,
        "twice": silent,
        "asked": silent,
        "capped": silent,
        "late": silent,
        "decided": silent,
        "scored": silent,
    }
    policies = {name: POLICY.format(surface=name) for name in kinds}
    policies["mute"] += UNSCORED
    policies["twice"] += AGREEMENT + UNSCORED
    policies["asked"] += JUDGE.format("judge", "1s")
    policies["capped"] += JUDGE.format("judge", "1s").replace("within", "max_usd_per_request: 0.0000001, within")
    policies["scored"] += "  verify: [logprobs, scorer]\n"
    policies["decided"] += JUDGE.format("decider", "1s")
    policies["late"] += JUDGE.format("judge", "100ms")
    claiming = claiming_all(folder / "claims")
    pinned = f"{claiming}@{claiming.name.removeprefix('chat-')}"
    policies["informed"] = policies["informed"].replace("classifier: none", f"classifier: {pinned}")
    tiers = [{"name": name, "backends": [copy.deepcopy(backend)]} for name, backend in kinds.items()] + tiers[1:]
    judge = {**plain, "model": "judge", "price": {"input": 1, "output": 1}}
    tiers.append({"name": "judge", "backends": [judge]})
    decider = {
        "kind": "decisions",
        "base_url": decisions.url,
        "model": "gpt-6-luna",
        "price": {"input": 1, "output": 1},
    }
    tiers.append({"name": "decider", "backends": [decider]})
    scored = written(folder / "scorer.json", WHOLE)
    settings = {"tiers": tiers, "default_surface": "raw", "scorer": str(scored), "cross_encoder": "default"}
    with serve(folder, local.url, hosted.url, store_url=_store.url, policies=policies, settings=settings) as gateway:
        yield gateway


@pytest.fixture
def gw(judging: Gateway, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream) -> Gateway:
    hosted_upstream.default = Reply(text="From hosted.")
    return judging


def put(
    gateway: Gateway, surface: str, question: str = "What is the capital of Italy?", **more: Any
) -> httpx2.Response:
    return ask(gateway, question, model=surface, headers={"x-tierline-debug": "1"}, **more)


def first_attempt(store: LocalStore, response: httpx2.Response) -> dict[str, Any]:
    found: dict[str, Any] = next(hop for hop in traced(store, response)["hops"] if hop["name"] == "attempt")
    return found["attributes"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_head_accepts_what_the_raw_score_would_not(
    gw: Gateway, store: LocalStore, local_upstream: Upstream, stream: bool
) -> None:
    """A calibrated probability is held against confidence_below, and the span says whose word it was."""
    local_upstream.default = DOUBTFUL
    answered = put(gw, "headed", stream=stream)
    assert text_of(answered.content) == DOUBTFUL.text
    assert answered.headers["x-tierline-path"] == "direct"
    attempt = first_attempt(store, answered)
    assert attempt["tierline.confidence.basis"] == "calibrated"
    assert attempt["tierline.confidence"] == pytest.approx(0.9, abs=0.01)
    assert attempt["tierline.confidence.min"] == 0.5
    head = httpx2.get(f"{gw.origin}/readyz").json()["tiers"]["headed"]["backends"]["headed"]["confidence_head"]
    assert attempt["tierline.confidence.head"] == head
    assert f"(calibrated by {head})" in answered.headers["x-tierline-reason"]


def test_what_the_classifier_expects_of_the_tier_moves_its_head(
    gw: Gateway, store: LocalStore, local_upstream: Upstream
) -> None:
    """The same answer is believed less of a question that this tier is expected to get wrong."""
    local_upstream.default = DOUBTFUL
    expected = first_attempt(store, put(gw, "headed", HARD))["tierline.confidence"]
    doubted = first_attempt(store, put(gw, "informed", HARD))["tierline.confidence"]
    assert doubted < expected - 0.02


def test_a_head_rejects_what_it_holds_to_be_wrong(gw: Gateway, local_upstream: Upstream) -> None:
    """Below confidence_below the next tier takes over."""
    local_upstream.default = Reply(text="Um.", logprob=-3.0)
    answered = put(gw, "headed")
    assert (text_of(answered.content), answered.headers["x-tierline-path"]) == ("From hosted.", "escalated")
    assert "< 0.5 (calibrated" in answered.headers["x-tierline-reason"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_raw_score_is_held_against_a_threshold_of_its_own(
    gw: Gateway, store: LocalStore, local_upstream: Upstream, stream: bool
) -> None:
    """Without a head it is uncalibrated_below that decides."""
    local_upstream.default = DOUBTFUL
    answered = put(gw, "raw", stream=stream)
    assert (text_of(answered.content), answered.headers["x-tierline-path"]) == ("From hosted.", "escalated")
    attempt = first_attempt(store, answered)
    assert (attempt["tierline.confidence.basis"], attempt["tierline.confidence.min"]) == ("logprob", 0.8)
    assert "tierline.confidence.head" not in attempt


def test_alternatives_are_asked_for_only_where_a_head_looks_at_them(gw: Gateway, local_upstream: Upstream) -> None:
    """They make a reply longer, and the client sees none of it."""
    shown = put(gw, "headed").json()
    put(gw, "raw")
    assert [request.body["top_logprobs"] for request in local_upstream.requests] == [5, 1]
    assert shown["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_json_that_breaks_its_schema_escalates(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, stream: bool
) -> None:
    """However sure its tokens are; what fits goes out."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    hosted_upstream.default = Reply(text='{"name":"Ada","age":36}')
    local_upstream.default = Reply(text='{"name":"Ada"}')
    broken = put(gw, "raw", response_format=form, stream=stream)
    assert json.loads(text_of(broken.content))["age"] == 36
    assert "not what the JSON schema says" in broken.headers["x-tierline-reason"]
    local_upstream.default = Reply(text='{"name":"Ada","age":37}')
    fitting = put(gw, "raw", response_format=form, stream=stream)
    assert (json.loads(text_of(fitting.content))["age"], fitting.headers["x-tierline-path"]) == (37, "direct")


def test_a_large_schema_is_held_against_an_answer_like_a_small_one(gw: Gateway, local_upstream: Upstream) -> None:
    """It is compiled beside the event loop."""
    properties = PERSON["properties"] | {f"field_{n}": {"type": "string"} for n in range(500)}
    schema = PERSON | {"properties": properties}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    local_upstream.default = Reply(text='{"name":"Ada","age":36,"field_499":5}')
    assert put(gw, "raw", response_format=form).headers["x-tierline-path"] == "escalated"


def test_tool_arguments_that_break_the_tools_parameters_escalate(gw: Gateway, local_upstream: Upstream) -> None:
    """A call of a function that was offered must fit what it takes."""
    tools = [{"type": "function", "function": {"name": "greet", "parameters": PERSON}}]
    local_upstream.default = Reply(tool_calls=(ToolCall("greet", '{"name": "Ada"}'),), no_logprobs=True)
    broken = put(gw, "raw", tools=tools)
    assert broken.headers["x-tierline-path"] == "escalated"
    assert "tool arguments that do not fit" in broken.headers["x-tierline-reason"]


def test_a_schema_that_cannot_be_checked_harms_nobody(
    gw: Gateway, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """One that refers to another document: nothing is fetched, the answer goes out, and the span says so."""
    local_upstream.default = Reply(text='{"name":"Ada"}')
    schema = {"$ref": f"{hosted_upstream.url}/person.json"}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    answered = put(gw, "raw", response_format=form)
    assert (text_of(answered.content), answered.headers["x-tierline-path"]) == ('{"name":"Ada"}', "direct")
    assert first_attempt(store, answered)["tierline.schema.unchecked"] == "refers to another document"
    assert not hosted_upstream.probes


def test_without_evidence_the_policy_decides(gw: Gateway, store: LocalStore, local_upstream: Upstream) -> None:
    """No log-probabilities and nothing in their place is a state of its own: here it escalates."""
    answered = put(gw, "mute")
    assert answered.headers["x-tierline-path"] == "escalated"
    assert "no signal" in answered.headers["x-tierline-reason"]
    assert first_attempt(store, answered)["tierline.confidence.basis"] == "none"
    assert len(local_upstream.requests) == 1
    assert "logprobs" not in local_upstream.requests[0].body


def is_sample(request: Any) -> bool:
    return bool(request.body.get("temperature") == 0.7)


def test_two_answers_that_agree_are_evidence(gw: Gateway, store: LocalStore, local_upstream: Upstream) -> None:
    """A second sample says the same: the answer goes out, its sample's cost counts as wasted."""
    local_upstream.default = Reply(text="The answer is Rome.")
    local_upstream.on(is_sample).reply(text="the answer is  ROME")
    answered = put(gw, "twice", seed=7)
    assert (text_of(answered.content), answered.headers["x-tierline-path"]) == ("The answer is Rome.", "direct")
    assert len(local_upstream.requests) == 2
    assert sum("seed" in request.body for request in local_upstream.requests) == 1
    record = traced(store, answered)
    assert [hop["name"] for hop in record["hops"]] == ["request", "cache.exact", "route", "attempt", "sample"]
    attempt = record["hops"][3]["attributes"]
    assert (attempt["tierline.confidence.basis"], attempt["tierline.confidence"]) == ("agreement", 1.0)
    assert record["ledger"]["wasted_usd"] == pytest.approx(record["ledger"]["cost_usd"] / 2)
    assert record["ledger"]["attempts"] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("sampled", "path", "by"),
    [
        ("The capital of Italy is Rome.", "direct", "pair_model"),
        ("The capital of Italy is Milan.", "escalated", "pair_model"),
        ("rome", "direct", "words"),
    ],
)
def test_the_pair_model_says_whether_answers_agree(
    gw: Gateway, store: LocalStore, local_upstream: Upstream, sampled: str, path: str, by: str, stream: bool
) -> None:
    """A short answer agrees with a long one that says the same, whole and streamed; the span says what compared."""
    local_upstream.default = Reply(text="Rome.")
    local_upstream.on(is_sample).reply(text=sampled)
    for _ in range(20):  # the worker may open its cross-encoder only now
        answered = put(gw, "twice", "What is the capital of Italy?", stream=stream)
        attempt = first_attempt(store, answered)
        if attempt.get("tierline.verify.skipped") != ["agreement: the cross-encoder is late"]:
            break
    assert answered.headers["x-tierline-path"] == path
    assert attempt["tierline.agreement.by"] == by


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["responses", "messages"])
@pytest.mark.parametrize(("sampled", "path"), [("It is Rome.", "direct"), ("It is Milan.", "escalated")])
def test_the_other_apis_compare_answers_too(
    gw: Gateway, local_upstream: Upstream, api: str, sampled: str, path: str, stream: bool
) -> None:
    """The question is read from a body in their own form."""
    asked = "What is the capital of Italy?"
    own = {"input": asked} if api == "responses" else {"messages": [{"role": "user", "content": asked}]}
    body = {"model": "twice", "stream": stream, **own} | ({"max_tokens": 99} if api == "messages" else {})
    local_upstream.default = Reply(text="Rome.")
    local_upstream.on(is_sample).reply(text=sampled)
    for _ in range(20):  # the worker may open its cross-encoder only now
        answered = httpx2.post(f"{gw.url}/{api}", json=body, headers={"x-tierline-debug": "1"}, timeout=20)
        if "no signal" not in answered.headers["x-tierline-reason"]:
            break
    assert answered.headers["x-tierline-path"] == path


def test_two_answers_that_differ_escalate(gw: Gateway, local_upstream: Upstream) -> None:
    """A model that says something else each time does not know."""
    local_upstream.default = Reply(text="Rome.")
    local_upstream.on(is_sample).reply(text="Milan.")
    answered = put(gw, "twice")
    assert (text_of(answered.content), answered.headers["x-tierline-path"]) == ("From hosted.", "escalated")
    assert "< 0.8 (agreement)" in answered.headers["x-tierline-reason"]


def test_a_slow_sample_is_not_waited_for(gw: Gateway, local_upstream: Upstream) -> None:
    """Twice as long as its draft took, or as a stream may be held, and there is no evidence: the policy decides."""
    local_upstream.default = Reply(text="The answer is Rome.")
    local_upstream.on(is_sample).reply(text="The answer is Rome.", before_headers_s=7.0)
    began = time.monotonic()
    answered = put(gw, "twice")
    assert "no signal" in answered.headers["x-tierline-reason"] and 1.9 < time.monotonic() - began < 5.0


def test_several_choices_are_not_sampled(gw: Gateway, local_upstream: Upstream) -> None:
    """Then there is no evidence, and the policy decides."""
    answered = put(gw, "twice", n=2)
    assert "no signal" in answered.headers["x-tierline-reason"]
    assert len(local_upstream.requests) == 1


LONG = "Italy has 20 regions, and its capital is Rome, a city on the Tiber with many people and many churches."


@pytest.mark.parametrize(
    ("sampled", "goes_out"),
    [(LONG, LONG), (LONG.replace("20", "17"), "From hosted.")],  # sure by words: the model may not be open yet
    ids=["agree", "differ"],
)
def test_the_beginnings_of_two_streams_are_compared(
    gw: Gateway, store: LocalStore, local_upstream: Upstream, sampled: str, goes_out: str
) -> None:
    """The sample runs beside the held tokens, and is no longer than it has to be."""
    local_upstream.default = Reply(text=LONG)
    local_upstream.on(is_sample).reply(text=sampled)
    answered = put(gw, "twice", stream=True, max_tokens=500)
    assert text_of(answered.content) == goes_out
    assert first_attempt(store, answered)["tierline.confidence.basis"] == "agreement"
    [sample] = filter(is_sample, local_upstream.requests)
    assert (sample.body["max_completion_tokens"], sample.body.get("stream", False)) == (12, False)


def is_judged(request: Any) -> bool:
    return request.body["model"] == "judge"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "confidence", "goes_out"),
    [
        (Reply(text="Yes", logprob=-0.1), math.exp(-0.1), "Rome."),
        (Reply(text="no", logprob=-0.3), 0.0, "From hosted."),
        (Reply(text="yes", logprob=-0.6), math.exp(-0.6), "From hosted."),
    ],
    ids=["yes", "no", "hardly"],
)
def test_a_judge_says_how_sure_a_draft_is(
    gw: Gateway,
    store: LocalStore,
    local_upstream: Upstream,
    said: Reply,
    confidence: float,
    goes_out: str,
    stream: bool,
) -> None:
    """Its probability of yes is the confidence; what it cost is in the ledger, and it sees the draft as data."""
    local_upstream.default = Reply(text="Rome.")
    local_upstream.on(is_judged).reply(said)
    answered = put(gw, "asked", stream=stream)
    assert text_of(answered.content) == goes_out
    record = traced(store, answered)
    attempt = next(hop for hop in record["hops"] if hop["name"] == "attempt")["attributes"]
    assert (attempt["tierline.confidence.basis"], attempt["tierline.confidence.min"]) == ("judge", 0.8)
    assert attempt["tierline.confidence"] == pytest.approx(confidence, abs=0.001)
    assert attempt["tierline.verify_ms"] > 0
    assert (attempt["tierline.verify.by"], attempt["tierline.verify.said"]) == ("judge", attempt["tierline.confidence"])
    draft = record["ledger"]["calls"][0]
    assert (draft["verifier"], draft["verified"]) == ("judge", attempt["tierline.confidence"])
    [asked] = filter(is_judged, local_upstream.requests)
    shown = json.loads(asked.body["messages"][-1]["content"].split("\n\n")[0])
    assert (shown["draft"], shown["whole"]) == ("Rome.", True)
    assert (asked.body["max_tokens"], asked.body["top_logprobs"], asked.body.get("stream", False)) == (1, 5, False)
    judged = next(call for call in record["ledger"]["calls"] if call["model"] == "judge")
    assert (judged["attempt"], judged["tier"], judged["outcome"], judged["wasted"]) == (0, "judge", "judged", True)
    assert judged["cost_usd"] > 0 and record["ledger"]["cost_usd"] >= judged["cost_usd"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("surface", "reply", "why"),
    [
        ("capped", Reply(text="yes"), "judge: it may cost $"),
        ("late", Reply(text="yes", before_headers_s=30.0), "judge: no verdict within "),
        ("asked", error_reply(500), "judge: status 500"),
        ("asked", Reply(text="Well"), "judge: it said neither yes nor no"),
        ("asked", Reply(text="yes", no_logprobs=True), "judge: it said neither yes nor no, or not how surely"),
    ],
    ids=["too dear", "too slow", "fails", "says something else", "no log-probabilities"],
)
def test_a_judge_without_a_verdict_is_skipped_and_said(
    gw: Gateway, store: LocalStore, local_upstream: Upstream, surface: str, reply: Reply, why: str, stream: bool
) -> None:
    """No log-probabilities and no verdict is no signal, and the trace says why there was none."""
    local_upstream.default = Reply(text="Rome.")
    local_upstream.on(is_judged).reply(reply)
    answered = put(gw, surface, stream=stream)
    assert (text_of(answered.content), answered.headers["x-tierline-path"]) == ("From hosted.", "escalated")
    attempt = first_attempt(store, answered)
    assert attempt["tierline.confidence.basis"] == "none"
    [skipped] = attempt["tierline.verify.skipped"]
    assert skipped.startswith(why)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("p", "basis", "goes_out"),
    [(0.93, "judge", "Rome."), (0.4, "judge", "From hosted."), (1.0, "judge", "Rome."), (None, "none", "From hosted.")],
)
def test_a_backend_of_decisions_judges(
    gw: Gateway,
    store: LocalStore,
    local_upstream: Upstream,
    decisions: StrictDecisions,
    p: float | None,
    basis: str,
    goes_out: str,
    stream: bool,
) -> None:
    """It is asked one question, in the form that the API takes, and its probability is the confidence."""
    decisions.reset()
    decisions.p = p
    local_upstream.default = Reply(text="Rome.")
    answered = put(gw, "decided", stream=stream)
    assert (text_of(answered.content), decisions.refused) == (goes_out, [])
    record = traced(store, answered)
    attempt = next(hop for hop in record["hops"] if hop["name"] == "attempt")["attributes"]
    assert attempt["tierline.confidence.basis"] == basis
    if p is not None:
        assert attempt["tierline.confidence"] == pytest.approx(p, abs=1e-6)
    [asked] = decisions.requests
    assert json.loads(asked.body["input"])["draft"] == "Rome."
    judged = next(call for call in record["ledger"]["calls"] if call["tier"] == "decider")
    assert (judged["tokens_in"], judged["cost_usd"]) == (40, pytest.approx(40e-6))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "goes_out"), [("Rome.", "Rome."), (LONG, "From hosted.")], ids=["short", "long"])
def test_a_scorer_judges_whole_answers(
    gw: Gateway, store: LocalStore, local_upstream: Upstream, text: str, goes_out: str, stream: bool
) -> None:
    """This one trusts short ones. Its word is a probability; of a beginning it has none, and the trace says so."""
    local_upstream.default = Reply(text=text, between_s=0.01)
    answered = put(gw, "scored", stream=stream)
    assert text_of(answered.content) == goes_out
    attempt = first_attempt(store, answered)
    if stream and text == LONG:
        assert attempt["tierline.verify.skipped"] == ["scorer: it has no answer"]
        assert attempt["tierline.confidence.basis"] == "none"
    else:
        assert (attempt["tierline.confidence.basis"], attempt["tierline.confidence.min"]) == ("scorer", 0.5)


def test_a_judge_has_a_cap_for_the_day(gw: Gateway, store: LocalStore, local_upstream: Upstream) -> None:
    """All workers count one sum in the store; beyond it no judge is asked."""
    local_upstream.default = Reply(text="Rome.")
    local_upstream.on(is_judged).reply(text="yes")
    assert put(gw, "asked").headers["x-tierline-path"] == "direct"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    with redis.Redis(port=store.port) as administrator:
        administrator.hset("tierline:learn:spent", f"{day}:verify:asked", 2_000_000_000)
    spent = put(gw, "asked", "What is the capital of Spain?")
    assert spent.headers["x-tierline-path"] == "escalated"
    assert first_attempt(store, spent)["tierline.verify.skipped"] == ["judge: max_usd_per_day is spent"]


def test_a_draft_with_log_probabilities_is_not_put_to_a_judge(gw: Gateway, local_upstream: Upstream) -> None:
    """Unless the policy asks it first."""
    local_upstream.on(is_judged).reply(text="no")
    assert put(gw, "raw").headers["x-tierline-path"] == "direct"
    assert not any(map(is_judged, local_upstream.requests))


def test_a_failing_sample_is_no_failure(gw: Gateway, store: LocalStore, local_upstream: Upstream) -> None:
    """It is no evidence either."""
    local_upstream.on(is_sample).reply(error_reply(500))
    answered = put(gw, "twice")
    assert (answered.status_code, answered.headers["x-tierline-path"]) == (200, "escalated")
    assert "no signal" in answered.headers["x-tierline-reason"]
    sample = traced(store, answered)["hops"][4]
    assert (sample["name"], sample["error"]) == ("sample", "upstream_http_error")


def test_a_slow_sample_is_not_waited_for_beyond_the_attempts_time(gw: Gateway, local_upstream: Upstream) -> None:
    """The deadline holds, the call is cancelled, and its place at the backend is free again."""
    local_upstream.on(is_sample).reply(before_headers_s=30.0)
    body = {"model": "twice", "messages": [{"role": "user", "content": "What is the capital of Italy?"}]}
    headers = {"x-tierline-deadline-ms": "1500"}
    answered = httpx2.post(f"{gw.url}/chat/completions", json=body, headers=headers, timeout=20)
    assert text_of(answered.content) == "From hosted."
    next(filter(is_sample, local_upstream.requests)).wait_gone(2)

    def in_flight() -> int:
        return int(httpx2.get(f"{gw.origin}/readyz").json()["tiers"]["twice"]["backends"]["twice"]["in_flight"])

    until(lambda: in_flight() == 0, 2, "a free place")


def test_a_client_that_leaves_takes_the_samples_with_it(gw: Gateway, local_upstream: Upstream) -> None:
    """Neither the answer's call nor the sample's goes on for nobody."""
    local_upstream.default = Reply(before_headers_s=30.0)
    body = {"model": "twice", "messages": [{"role": "user", "content": "What is the capital of Italy?"}]}
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{gw.url}/chat/completions", json=body, timeout=1.0)
    for request in local_upstream.wait_for(2):
        request.wait_gone(2)


GREET = {"type": "function", "function": {"name": "greet", "parameters": PERSON}}
REST = {"type": "function", "function": {"name": "rest"}}
CALL = ToolCall("greet", '{"name": "Ada", "age": 36}')
AS_TEXT = '<tool_call>\n{"name": "greet", "arguments": {"name": "Ada", "age": 36}}\n</tool_call>'
CANNOT_BE = [
    pytest.param(Reply(tool_calls=(ToolCall("search_web", "{}"),)), {}, calls.NOT_OFFERED, id="not offered"),
    pytest.param(Reply(tool_calls=(CALL, CALL)), {"parallel_tool_calls": False}, calls.PARALLEL, id="parallel"),
    pytest.param(Reply(tool_calls=(CALL,)), {"tool_choice": "none"}, calls.FORBIDDEN, id="none"),
    pytest.param(
        Reply(tool_calls=(CALL,)),
        {"tool_choice": {"type": "function", "function": {"name": "rest"}}},
        calls.NOT_CHOSEN,
        id="another",
    ),
    pytest.param(Reply(text="Hello Ada."), {"tool_choice": "required"}, calls.NOT_MADE, id="required"),
    pytest.param(Reply(text=AS_TEXT), {}, calls.AS_TEXT, id="text"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("sampled", "agreement"),
    [
        (Reply(text="Let me greet her.", tool_calls=(ToolCall("greet", '{"age": 36, "name": "Ada"}'),)), 1.0),
        (Reply(tool_calls=(ToolCall("greet", '{"name": "Bob", "age": 36}'),)), 0.5),
        (Reply(tool_calls=(ToolCall("rest", ""),)), 0.0),
        (Reply(text="Hello Ada."), 0.0),
    ],
    ids=["same", "another name", "another tool", "no call"],
)
def test_two_calls_that_agree_are_evidence(
    gw: Gateway, store: LocalStore, local_upstream: Upstream, sampled: Reply, agreement: float, stream: bool
) -> None:
    """A model that would do something else the next time does not know what to do."""
    local_upstream.default = Reply(tool_calls=(CALL,))
    local_upstream.on(is_sample).reply(sampled)
    answered = put(gw, "twice", tools=[GREET, REST], stream=stream)
    assert answered.headers["x-tierline-path"] == ("direct" if agreement == 1.0 else "escalated")
    attempt = first_attempt(store, answered)
    assert (attempt["tierline.confidence.basis"], attempt["tierline.confidence"]) == ("agreement", agreement)


@pytest.mark.parametrize("stream", [False, True])
def test_a_judge_sees_the_calls_of_a_draft(gw: Gateway, local_upstream: Upstream, stream: bool) -> None:
    """And those that were made before, in the conversation."""
    local_upstream.default = Reply(text="I greet her.", tool_calls=(CALL,))
    local_upstream.on(is_judged).reply(text="yes")
    call = {"id": "c", "type": "function", "function": {"name": "rest", "arguments": "{}"}}
    before = [{"role": "user", "content": "Rest, then greet Ada."}, {"role": "assistant", "tool_calls": [call]}]
    messages = [*before, {"role": "tool", "tool_call_id": "c", "content": "Rested."}]
    answered = put(gw, "asked", messages=messages, tools=[GREET, REST], stream=stream)
    assert answered.headers["x-tierline-path"] == "direct"
    [asked] = filter(is_judged, local_upstream.requests)
    shown = json.loads(asked.body["messages"][-1]["content"].split("\n\n")[0])
    assert shown["calls"] == [{"tool": "greet", "arguments": CALL.arguments}]
    assert [said["content"] for said in shown["conversation"]] == ["Rest, then greet Ada.", "rest({})", "Rested."]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("draft", "more", "fault"), CANNOT_BE)
def test_a_call_that_cannot_be_escalates_and_is_named(
    gw: Gateway,
    store: LocalStore,
    local_upstream: Upstream,
    hosted_upstream: Upstream,
    draft: Reply,
    more: dict[str, Any],
    fault: str,
    stream: bool,
) -> None:
    """However sure its tokens are; outcome, reason and ledger name it, and the trace has the tools it called."""
    local_upstream.default = draft
    if more.get("tool_choice") not in (None, "none"):  # the next tier obeys
        hosted_upstream.default = Reply(tool_calls=(ToolCall("rest", "{}"),))
    answered = put(gw, "raw", tools=[GREET, REST], stream=stream, **more)
    assert (answered.headers["x-tierline-tier"], answered.headers["x-tierline-path"]) == ("hosted", "escalated")
    record = traced(store, answered)
    attempt = next(hop for hop in record["hops"] if hop["name"] == "attempt")["attributes"]
    assert (attempt["tierline.outcome"], attempt["tierline.reason"]) == ("unfit", fault)
    assert record["ledger"]["calls"][0]["fault"] == fault
    assert attempt.get("tierline.calls", []) == [call.name for call in draft.tool_calls]
    assert "tierline.calls.arguments" not in attempt


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_without_arguments_of_a_tool_without_parameters_is_fine(
    gw: Gateway, local_upstream: Upstream, stream: bool
) -> None:
    """Many models send an empty text for it."""
    local_upstream.default = Reply(tool_calls=(ToolCall("rest", ""),))
    fine = put(gw, "raw", tools=[GREET, REST], stream=stream)
    assert "tool arguments" not in fine.headers["x-tierline-reason"]
    local_upstream.default = Reply(tool_calls=(ToolCall("greet", ""),))
    missing = put(gw, "raw", tools=[GREET, REST], stream=stream)
    assert "tool arguments that do not fit" in missing.headers["x-tierline-reason"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["responses", "messages"])
def test_the_other_apis_drop_a_call_that_cannot_be(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, api: str, stream: bool
) -> None:
    """A tool that was not offered, and a choice that was not obeyed, in their own words."""
    responses = {
        "input": "hello",
        "tools": [{"type": "function", "name": "greet", "parameters": PERSON}],
        "tool_choice": "required",
    }
    messages = {
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{"name": "greet", "input_schema": PERSON}],
        "tool_choice": {"type": "any"},
    }
    body = {"model": "raw", "stream": stream, **(responses if api == "responses" else messages)}
    hosted_upstream.default = Reply(tool_calls=(CALL,))
    for draft in (Reply(tool_calls=(ToolCall("search_web", "{}"),)), Reply(text="Hello.")):
        local_upstream.default = draft
        answered = httpx2.post(f"{gw.url}/{api}", json=body, timeout=20)
        assert answered.headers["x-tierline-path"] == "escalated"
        assert answered.headers["x-tierline-tier"] == "hosted"
        assert "Ada" in answered.text


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_last_tier_calls_is_served_and_named(
    gw: Gateway, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream, stream: bool
) -> None:
    """Nothing could replace it: the client gets it as it is, and the ledger counts its fault."""
    hosted_upstream.default = Reply(tool_calls=(ToolCall("search_web", "{}"),))
    answered = put(gw, "tier:hosted", tools=[GREET], stream=stream)
    assert "search_web" in answered.text
    record = traced(store, answered)
    assert record["ledger"]["calls"][-1]["fault"] == calls.NOT_OFFERED
    attempt = [hop for hop in record["hops"] if hop["name"] == "attempt"][-1]["attributes"]
    assert (attempt["tierline.outcome"], attempt["tierline.fault"]) == ("accepted", calls.NOT_OFFERED)
