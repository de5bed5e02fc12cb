"""The scripted backend: what a script may say, what comes of it as JSON and as a stream, and how its faults look."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.assembly import build, running
from gateway.backends.base import BackendError, BackendRequest, BadStatus, InvalidReply, Truncated, Unreachable
from gateway.backends.openai import OpenAIBackend
from gateway.chat.completions import assemble
from gateway.cli.main import main
from gateway.config.launch import Launch
from gateway.config.loader import load_deployment
from gateway.parts.local.kinds.scripted.replies import FINGERPRINT, ScriptedTransport
from gateway.parts.local.kinds.scripted.script import LOOP_TOKENS, MID_STREAM, Fault, ScriptedRule
from gateway.server.app import App
from policies.errors import ConfigError
from tests.support.gateway import ROOT
from tests.support.upstream import Upstream

Rule = Mapping[str, Any]
Json = dict[str, Any]

TRIAL = ROOT / "deploy" / "trial"
ERRORS: dict[Fault, tuple[type[BackendError] | None, type[BackendError] | None]] = {
    Fault.CLOSE_BEFORE_HEADERS: (Unreachable, Unreachable),
    Fault.CLOSE_AFTER_HEADERS: (Unreachable, Truncated),
    Fault.RESET_MID_STREAM: (Unreachable, Truncated),
    Fault.CLOSE_MID_STREAM: (Unreachable, Truncated),
    Fault.EOF_MID_STREAM: (None, None),
    Fault.NO_DONE: (None, None),
    Fault.DONE_WITHOUT_FINISH: (None, None),
    Fault.MALFORMED_EVENT: (None, InvalidReply),
    Fault.MALFORMED_JSON: (InvalidReply, InvalidReply),
    Fault.HTML: (InvalidReply, InvalidReply),
    Fault.EMPTY_CHOICES: (InvalidReply, None),
    Fault.NULL_CHOICES: (InvalidReply, None),
    Fault.NO_CHOICES: (InvalidReply, None),
    Fault.ERROR_IN_200: (InvalidReply, InvalidReply),
    Fault.ERROR_MID_STREAM: (None, InvalidReply),
    Fault.OTHER_KIND: (None, None),
    Fault.GIANT: (InvalidReply, InvalidReply),
    Fault.REDIRECT: (BadStatus, BadStatus),
    Fault.SLOW_LORIS: (None, None),
    Fault.LOOP: (None, None),
}
"""What each fault raises for a JSON request and for a stream; those that hang have tests of their own."""


def scripted(*rules: Rule, max_reply: int = 1 << 20) -> OpenAIBackend:
    """A backend that follows these rules, as a config states them."""
    transport = ScriptedTransport([ScriptedRule.model_validate(rule) for rule in rules], max_reply=max_reply)
    return OpenAIBackend(transport, model="scripted", key=None)


def call(*contents: Any, ask_logprobs: bool = False, **more: Any) -> BackendRequest:
    """A call whose user messages have these contents, an assistant's between them."""
    messages: list[Json] = []
    for content in contents or ("hello",):
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": "capital"}]
    return BackendRequest({"model": "x", "messages": messages[:-1], **more}, ask_logprobs=ask_logprobs)


async def chunks_of(backend: OpenAIBackend, asked: BackendRequest) -> list[Json]:
    """All chunks of the streamed reply."""
    stream = await backend.stream(asked)
    chunks: list[Json] = []
    while events := await stream.read():
        chunks += [event.value for event in events]
    stream.close()
    return chunks


def text_in(chunk: Json) -> str:
    """The text of a chunk; empty for one of the role, the finish or the totals."""
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


async def text_of(backend: OpenAIBackend, asked: BackendRequest) -> str:
    completion = await backend.complete(asked)
    return str(completion.value["choices"][0]["message"]["content"])


async def test_the_first_rule_that_fits_the_last_user_message_answers() -> None:
    """By part, by regular expression, or whatever it says; earlier messages and other roles do not count."""
    backend = scripted(
        {"match": "capital", "reply": {"text": "by part"}},
        {"match_regex": r"^\d+\s*\+", "reply": {"text": "by pattern"}},
        {"reply": {"text": "otherwise"}},
    )
    assert await text_of(backend, call("the capital?")) == "by part"
    assert await text_of(backend, call("1 + 1")) == "by pattern"
    assert await text_of(backend, call("what is 1 + 1")) == "otherwise"
    assert await text_of(backend, call("the capital?", "and now?")) == "otherwise"
    assert (
        await text_of(backend, call([{"type": "text", "text": "the"}, {"type": "text", "text": "capital"}]))
        == "by part"
    )


async def test_a_rule_may_answer_so_many_times() -> None:
    """Then the next ones have their turn; requests that it does not fit are not counted."""
    backend = scripted({"match": "a", "times": 2, "reply": {"text": "first"}}, {"reply": {"text": "then"}})
    said = [await text_of(backend, call(question)) for question in ("a", "b", "a", "a")]
    assert said == ["first", "then", "first", "then"]


@pytest.mark.parametrize(
    "reply",
    [
        {"text": "one two  three\nfour", "confidence": 0.5},
        {"text": ""},
        {"tool_calls": [{"name": "weather", "arguments": {"city": "Lyon"}}, {"name": "now", "arguments": "{not json"}]},
        {"text": "cut", "finish_reason": "length", "usage": {"prompt_tokens": 7, "completion_tokens": 9}},
    ],
)
async def test_json_and_stream_say_the_same(reply: Rule) -> None:
    """Message, log-probabilities, finish and usage; the chunks put together are the completion."""
    backend = scripted({"reply": reply})
    asked = call(ask_logprobs=True, stream_options={"include_usage": True})
    whole = (await backend.complete(asked)).value
    streamed = assemble(await chunks_of(backend, asked))
    for value in (whole, streamed):
        message = value["choices"][0]["message"]
        value["choices"][0]["message"] = {k: message.get(k) or None for k in ("role", "content", "tool_calls")}
        value["choices"][0]["logprobs"] = (value["choices"][0].get("logprobs") or {}).get("content") or None
    assert streamed == whole


async def test_every_reply_says_that_it_is_scripted_and_is_the_same_again() -> None:
    """By its fingerprint and its id; the same messages get the same bytes, others another id."""
    one, other = scripted({}), scripted({})
    first, again = await one.complete(call("a")), await other.complete(call("a"))
    assert first.raw == again.raw
    assert (await one.complete(call("b"))).value["id"] != first.value["id"]
    assert first.value["model"] == "scripted"
    for value in (first.value, *await chunks_of(one, call("a"))):
        assert value["system_fingerprint"] == FINGERPRINT
        assert value["id"] == first.value["id"] and value["id"].startswith("chatcmpl-scripted-")


async def test_confidence_and_logprobs() -> None:
    """One probability for every token, or the logarithm of each; none where they are not asked for."""

    async def logprobs(reply: Rule) -> list[float]:
        value = (await scripted({"reply": reply}).complete(call(ask_logprobs=True))).value
        return [token["logprob"] for token in value["choices"][0]["logprobs"]["content"]]

    assert await logprobs({"text": "a b", "confidence": 0.25}) == pytest.approx([math.log(0.25)] * 2)
    assert await logprobs({"text": "a b", "logprobs": -2}) == [-2, -2]
    assert await logprobs({"text": "a b", "logprobs": [-1, -3]}) == [-1, -3]
    assert (await scripted({}).complete(call())).value["choices"][0]["logprobs"] is None


async def test_the_request_s_limit_cuts_the_reply() -> None:
    """As a model's: so many tokens, and `length` as the reason."""
    choice = (await scripted({"reply": {"text": "one two three"}}).complete(call(max_tokens=2))).value["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one two", "length")


async def test_tokens_take_their_time() -> None:
    """The first comes after `ttft`, each further one `tpot` later; a JSON reply comes with its last token."""
    backend = scripted({"reply": {"text": "a b c", "ttft": "60ms", "tpot": "30ms"}})
    began = time.monotonic()
    await backend.complete(call())
    assert time.monotonic() - began >= 0.119
    began, at = time.monotonic(), []
    stream = await backend.stream(call())
    while events := await stream.read():
        at += [time.monotonic() - began for event in events if text_in(event.value)]
    assert len(at) == 3
    assert all(when >= least - 0.001 for when, least in zip(at, (0.06, 0.09, 0.12), strict=True))


async def test_a_cancelled_read_loses_nothing_and_waits_no_longer() -> None:
    """Whoever reads with a short patience, again and again, gets the whole reply."""
    stream = await scripted({"reply": {"text": "a b c", "tpot": "50ms"}}).stream(call())
    texts: list[str] = []
    async with asyncio.timeout(5):
        while not stream.done_seen:
            try:
                async with asyncio.timeout(0.01):
                    events = await stream.read()
            except TimeoutError:
                continue
            texts += [text_in(event.value) for event in events]
    assert "".join(texts) == "a b c"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_has_its_status_its_body_and_its_pause(stream: bool) -> None:
    """Whatever kind of reply was asked for; without a body it is OpenAI's error object."""
    body = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
    backend = scripted(
        {"match": "limit", "reply": {"error": {"status": 429, "body": body, "retry_after": "1.5s"}}},
        {"match": "text", "reply": {"error": {"status": 502, "body": "<html>"}}},
        {"reply": {"error": {"status": 500}}},
    )

    async def error(question: str) -> BadStatus:
        with pytest.raises(BadStatus) as caught:
            await (backend.stream if stream else backend.complete)(call(question))
        return caught.value

    limited = await error("limit")
    assert (limited.status, json.loads(limited.body), limited.retry_after_s) == (429, body, 1.5)
    assert (await error("text")).body == b"<html>"
    usual = await error("else")
    assert (usual.status, usual.told["message"], usual.retry_after_s) == (500, "scripted error", None)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("fault", list(ERRORS), ids=lambda fault: fault.value)
async def test_what_goes_wrong_is_what_it_would_be_over_a_socket(
    fault: Fault, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault ends in the error that a real backend's would, or in a reply that lacks what it leaves out."""
    monkeypatch.setattr("gateway.parts.local.kinds.scripted.replies._SLOWEST_S", 0.0001)  # of a thousand bytes
    backend = scripted({"reply": {"text": "a b c", "fault": fault.value}})
    expected = ERRORS[fault][stream]
    reply = chunks_of(backend, call()) if stream else backend.complete(call())
    if expected is not None:
        with pytest.raises(expected):
            await reply
        return
    value = await reply
    if isinstance(value, list):
        choices = [choice for chunk in value for choice in chunk["choices"]]
        finished = any(choice["finish_reason"] for choice in choices)
        whole = fault not in MID_STREAM | {Fault.DONE_WITHOUT_FINISH}
        assert finished is (whole and bool(choices))
    else:
        assert value.value["choices"][0]["finish_reason"] == ("length" if fault is Fault.LOOP else "stop")


def test_every_fault_is_tested() -> None:
    """One that is new needs a row."""
    hangs = {fault for fault in Fault if fault.value.startswith("hang")}
    assert hangs | ERRORS.keys() == set(Fault) and not hangs & ERRORS.keys()


async def test_a_stream_breaks_off_after_so_many_tokens() -> None:
    """And no sooner: what came before arrives."""
    stream = await scripted({"reply": {"text": "a b c d", "fault": "close_mid_stream", "after": 3}}).stream(call())
    texts = []
    with pytest.raises(Truncated):
        while events := await stream.read():
            texts += [text_in(event.value) for event in events]
    assert "".join(texts) == "a b c"


@pytest.mark.parametrize("fault", ["hang_before_headers", "hang_after_headers", "hang_mid_stream"])
async def test_a_hung_reply_waits_until_the_caller_leaves(fault: str) -> None:
    """Before its head, after it, or in the midst."""
    backend = scripted({"reply": {"fault": fault}})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await chunks_of(backend, call())


async def test_a_loop_says_the_same_again_and_again() -> None:
    """To its own limit, or to the request's."""
    backend = scripted({"reply": {"text": "on and", "fault": "loop"}})
    text = await text_of(backend, call())
    assert text.startswith("on and on and on and") and len(text.split()) == LOOP_TOKENS
    assert await text_of(backend, call(max_tokens=5)) == "on and on and on"


async def test_the_tests_model_server_sends_the_same_reply() -> None:
    """On a socket, from the same Reply, but for the id and the fingerprint."""
    rule = ScriptedRule.model_validate({"reply": {"text": "one two", "confidence": 0.5}})
    with Upstream() as upstream:
        upstream.default = rule.reply.reply()
        body = {**call(ask_logprobs=True).body, "model": "scripted", "logprobs": True, "top_logprobs": 1}
        over_socket = httpx2.post(f"{upstream.url}/chat/completions", json=body).json()
    in_process = (await scripted({"reply": rule.reply}).complete(call(ask_logprobs=True))).value
    own = ("id", "system_fingerprint")
    assert {k: v for k, v in over_socket.items() if k not in own} == {
        k: v for k, v in in_process.items() if k not in own
    }


# In a config


CONFIG = """\
tiers:
  - name: local
    backends:
      - kind: scripted
        {script}
"""


@pytest.mark.parametrize(
    ("script", "line", "key", "says"),
    [
        ("model: a", 4, "script", "needs one"),
        ("script: [{match: a}]", 5, "script[0]", "leave out match"),
        ("script: [{times: 1}]", 5, "script[0]", "leave out match"),
        ("script: [{reply: {txt: a}}]", 5, "script[0].reply.txt", "did you mean 'text'"),
        ("script: [{match_regex: '('}, {}]", 5, "script[0].match_regex", "not a regular expression"),
        ("script: [{match: a, match_regex: b}, {}]", 5, "script[0].match_regex", "keep one"),
        ("script:\n        - {reply: {ttft: 3}}", 6, "script[0].reply.ttft", "not a duration"),
        ("script:\n        - reply:\n            fault: bang", 7, "script[0].reply.fault", "'loop'"),
        ("script: [{reply: {confidence: 0}}]", 5, "script[0].reply.confidence", "greater than 0"),
        ("script: [{reply: {confidence: 0.5, logprobs: -1}}]", 5, "script[0].reply.logprobs", "keep one"),
        ("script: [{reply: {text: a b, logprobs: [-1]}}]", 5, "script[0].reply.logprobs", "1 numbers for a text of 2"),
        ("script: [{reply: {text: a, tool_calls: [{name: b}]}}]", 5, "script[0].reply.text", "leave it out"),
        ("script: [{reply: {error: {status: 200}}}]", 5, "script[0].reply.error.status", "400"),
        ("script: [{reply: {error: {status: 500}, tpot: 1s}}]", 5, "script[0].reply.tpot", "leave it out"),
        ("script: [{reply: {fault: html, after: 3}}]", 5, "script[0].reply.after", "midst of a stream"),
        ("script: [{}]\n        base_url: http://127.0.0.1:1/v1", 6, "base_url", "calls nobody"),
        ("script: [{}]\n        key_env: KEY", 6, "key_env", "calls nobody"),
        ("script: [{}]\n        kind: openai", 6, "kind", "given twice"),
    ],
)
def test_mistakes_in_a_script_are_refused_where_they_stand(
    tmp_path: Path, script: str, line: int, key: str, says: str
) -> None:
    """With the file, the line and the key."""
    file = tmp_path / "tierline.yaml"
    file.write_text(CONFIG.replace("{script}", script))
    with pytest.raises(ConfigError) as caught:
        load_deployment(file, {})
    told = [(problem.file, problem.line, problem.key, problem.message) for problem in caught.value.problems]
    assert any(
        (where, at, name) == (file, line, f"tiers[0].backends[0].{key}") and says in message
        for where, at, name, message in told
    ), told


def test_only_a_scripted_backend_has_a_script(tmp_path: Path) -> None:
    """One over HTTP would never look at it."""
    file = tmp_path / "tierline.yaml"
    file.write_text(CONFIG.replace("kind: scripted", "model: a").replace("{script}", "script: [{}]"))
    with pytest.raises(ConfigError, match="only a backend of kind: scripted follows one"):
        load_deployment(file, {})


def test_it_needs_neither_a_url_nor_a_key_nor_a_name(tmp_path: Path) -> None:
    """It is configured as it stands, `tierline up` starts no model for it, and its model is called `scripted`."""
    file = tmp_path / "tierline.yaml"
    file.write_text(CONFIG.replace("{script}", "script: [{}]"))
    deployment = load_deployment(file, {})
    (backend,) = deployment.tiers[0].backends
    assert (backend.model, backend.configured, deployment.wants_local_model) == ("scripted", True, False)


# The trial that ships


@asynccontextmanager
async def trial(config: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the gateway with this config and the trial's policies, in this process."""
    launch = Launch(config=config, policies=TRIAL / "policies")
    deployment = launch.deployment({})
    services = build(deployment, launch.policy_source(deployment))
    transport = httpx2.ASGITransport(app=App(services), raise_app_exceptions=False)
    async with running(services), httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def debugged(client: httpx2.AsyncClient, question: str, **more: Any) -> httpx2.Response:
    body = {"model": "chat", "messages": [{"role": "user", "content": question}], **more}
    return await client.post("/v1/chat/completions", json=body, headers={"x-tierline-debug": "1"})


@pytest.mark.parametrize("source", ["file", "readme"])
async def test_the_trial_escalates_by_confidence(source: str, tmp_path: Path) -> None:
    """As the README beside it says, with the file and with the README's own snippet."""
    config = TRIAL / "tierline.yaml"
    if source == "readme":
        snippets = re.findall(r"```yaml\n(.*?)```", (ROOT / "deploy" / "README.md").read_text(), re.DOTALL)
        (snippet,) = (one for one in snippets if "kind: scripted" in one)
        config = tmp_path / "tierline.yaml"
        config.write_text(snippet)
    async with trial(config) as client:
        unsure = await debugged(client, "What is the weather like in Lyon?")
        sure = await debugged(client, "What is the capital of France?")
    assert [unsure.headers[f"x-tierline-{name}"] for name in ("path", "tier")] == ["escalated", "hosted"], (
        unsure.headers
    )
    assert unsure.json()["choices"][0]["message"]["content"] == "The large model knows."
    assert [sure.headers[f"x-tierline-{name}"] for name in ("path", "tier", "confidence")] == [
        "direct",
        "local",
        "0.970",
    ]
    assert unsure.json()["system_fingerprint"] == sure.json()["system_fingerprint"] == FINGERPRINT


async def test_the_trial_shows_a_failing_backend_and_a_broken_stream() -> None:
    """A 503 is the next tier's turn; a stream that breaks off after the commit says so."""
    async with trial(TRIAL / "tierline.yaml") as client:
        broken = await debugged(client, "broken?", stream=True)
        failed = await debugged(client, "overloaded?")
    assert (failed.headers["x-tierline-path"], failed.headers["x-tierline-tier"]) == ("fallback", "hosted")
    assert " heard" in broken.text and " end." not in broken.text and "upstream_truncated" in broken.text


async def test_a_scripted_loop_is_found(tmp_path: Path) -> None:
    """A model that goes round in circles is the next tier's turn; a stream that does so after the commit is ended."""
    config = tmp_path / "tierline.yaml"
    text = (TRIAL / "tierline.yaml").read_text()
    config.write_text(text.replace("fault: close_mid_stream, after: 6", "fault: loop"))
    async with trial(config) as client:
        whole = await debugged(client, "broken?")
        streamed = await debugged(client, "Is it broken?", stream=True)
    assert (whole.headers["x-tierline-path"], whole.headers["x-tierline-tier"]) == ("escalated", "hosted"), (
        whole.headers
    )
    assert '"code":"repetition"' in streamed.text


def test_check_says_that_a_backend_is_scripted(capsys: pytest.CaptureFixture[str]) -> None:
    """In words and in JSON, and finds nothing wrong with the trial."""
    where = ["--config", str(TRIAL / "tierline.yaml"), "--policies", str(TRIAL / "policies")]
    assert main(["check", *where]) == 0
    said = capsys.readouterr().out
    assert said.count("scripted: replies come from the config, not from a model") == 2
    assert said.endswith("all is well\n")
    assert main(["check", "--json", *where]) == 0
    tiers = json.loads(capsys.readouterr().out)["tiers"]
    assert {backend["kind"] for tier in tiers for backend in tier["backends"]} == {"scripted"}
