"""What an answer says of itself, whole and as a stream, up to the verdict on it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.chat.completions import chunks_of, evidence_of
from gateway.chat.stream_state import StreamState
from policies.model import Escalate
from routing.confidence.judge import Evidence, assess

RULES = Escalate.model_validate(
    {"when": {"confidence_below": 0.5, "invalid": ["json", "tool_args"]}, "no_signal": "accept"}
)
WANTS_JSON = False

FUNCTION = {"name": "f", "arguments": '{"a":1}'}

both_forms = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def evidence(message: dict[str, Any], *, stream: bool) -> Evidence:
    """The evidence in an answer with this message."""
    completion = {"choices": [{"message": {"role": "assistant", "content": None} | message, "finish_reason": "stop"}]}
    if not stream:
        return evidence_of(completion, wants_json=WANTS_JSON)
    grown = StreamState(judged=True)
    for chunk in chunks_of(completion):
        grown.add(chunk)
    assert bool(grown.tokens) is any(message.values())
    return grown.evidence(wants_json=WANTS_JSON, own_limit=False, complete=True)


@both_forms
@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"content": "Yes."}, id="text"),
        pytest.param({"tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}]}, id="tool call"),
        pytest.param({"tool_calls": [{"id": "c", "type": "custom", "custom": {"input": "x"}}]}, id="custom tool call"),
        pytest.param({"function_call": FUNCTION}, id="legacy function call"),
        pytest.param({"audio": {"id": "a", "data": "UklGRg==", "transcript": "Yes."}}, id="audio"),
    ],
)
def test_an_answer_in_any_form_is_one(message: dict[str, Any], stream: bool) -> None:
    """Text, calls in the new form and the old, and speech are answers, none of them empty."""
    assert assess(evidence(message, stream=stream), RULES).accepted


@both_forms
def test_nothing_said_is_empty(stream: bool) -> None:
    """A message without any of them is empty."""
    assert assess(evidence({"content": ""}, stream=stream), RULES).reason == "empty"


@both_forms
@pytest.mark.parametrize("form", ["tool_calls", "function_call"])
def test_arguments_that_are_no_json(form: str, stream: bool) -> None:
    """Arguments that do not parse reject an answer, whichever form the call has."""
    broken = FUNCTION | {"arguments": '{"a":'}
    message: dict[str, Any] = {form: broken if form == "function_call" else [{"id": "c", "function": broken}]}
    assert assess(evidence(message, stream=stream), RULES).reason == "invalid tool arguments"


@both_forms
def test_alternatives_are_read_where_they_are_wanted(stream: bool) -> None:
    """So many of each token, in order; a token with fewer has fewer, and nonsense is left out."""
    tops = [[-0.1, -2.5, -4.0], [-0.2]]
    content = [
        {"token": "t", "logprob": top[0], "top_logprobs": [{"token": "x", "logprob": one} for one in top]}
        for top in tops
    ]
    content[1]["top_logprobs"] += [{"logprob": None}, "x"]
    choice = {"message": {"content": "tt"}, "delta": {"content": "tt"}, "logprobs": {"content": content}}
    if stream:
        grown = StreamState(judged=True, alternatives=2)
        grown.add({"choices": [choice]})
        found = grown.evidence(wants_json=WANTS_JSON, own_limit=False, complete=False)
    else:
        found = evidence_of({"choices": [choice]}, alternatives=2)
        assert evidence_of({"choices": [choice]}).top_logprobs is None
    assert found.top_logprobs == [[-0.1, -2.5], [-0.2]]
    assert found.logprobs == [-0.1, -0.2]


def test_a_legacy_call_in_pieces() -> None:
    """The arguments of a legacy function call are joined across its chunks."""
    grown = StreamState(judged=True)
    for piece in ({"name": "f", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ":1}"}):
        grown.add({"choices": [{"index": 0, "delta": {"function_call": piece}}]})
    found = grown.evidence(wants_json=WANTS_JSON, own_limit=False, complete=True)
    assert (found.tool_names, found.tool_arguments) == (["f"], ['{"a":1}'])
    assert grown.tokens == 3


def test_a_call_whose_index_is_no_number() -> None:
    """A backend may send anything: the call is read all the same."""
    grown = StreamState(judged=True)
    grown.add({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": [0], "function": FUNCTION}]}}]})
    assert grown.evidence(wants_json=WANTS_JSON, own_limit=False, complete=True).tool_arguments == ['{"a":1}']


def told_of(content: list[Any], *, text: str, stream: bool, tops_asked: bool = True, more: Any = ()) -> Evidence:
    """The evidence of an answer with these entries; of a stream, each comes with its token, unless that is untold."""
    if not stream:
        message = {"role": "assistant", "content": text, **dict(more)}
        choice = {"message": message, "logprobs": {"content": content}, "finish_reason": "stop"}
        return evidence_of({"choices": [choice]}, tops_asked=tops_asked)
    grown = StreamState(judged=True, tops_asked=tops_asked)
    for entry in content:
        if entry["token"]:
            told = {"content": [entry]} if entry.get("top_logprobs") or not tops_asked else None
            delta = {"content": entry["token"] if entry["token"] in text else None, **dict(more)}
            grown.add({"choices": [{"index": 0, "delta": delta, "logprobs": told}]})
    grown.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return grown.evidence(wants_json=WANTS_JSON, own_limit=False, complete=True)


def entries(*tokens: tuple[str, float]) -> list[dict[str, Any]]:
    """Entries of log-probabilities; those of exactly 0.0 have no alternative, as llama.cpp tells of proposed tokens."""
    return [
        {"token": token, "logprob": logprob, "top_logprobs": [{"token": token, "logprob": logprob}] if logprob else []}
        for token, logprob in tokens
    ]


@both_forms
@pytest.mark.parametrize(
    ("tokens", "text", "logprobs"),
    [
        pytest.param([("It", -1.0), (" is", -2.0), ("", -3.0)], "It is", [-1.0, -2.0], id="end of the text"),
        pytest.param([("It", -1.0), (" is", -2.0), (" so", 0.0)], "It is so", [-1.0, -2.0], id="a proposed token"),
        pytest.param([("It", -1.0), (" is", 0.0)], "It is", [-1.0], id="half is told"),
        pytest.param([("It", -1.0), (" is", 0.0), (" so", 0.0)], "It is so", None, id="less than half is told"),
        pytest.param([("```", -9.0), ("{", -1.0), ("}", -2.0)], "{}", [-1.0, -2.0], id="left out of the text"),
        pytest.param([("Yes", -1.0), ("<|im_end|>", -9.0)], "Yes", [-1.0], id="an end that is shown"),
        pytest.param([("�", -1.0), ("�", -2.0)], "é", [-1.0, -2.0], id="parts of a character"),
    ],
)
def test_what_is_told_of_an_answer(
    tokens: list[tuple[str, float]], text: str, logprobs: list[float] | None, stream: bool
) -> None:
    """Whole or streamed, the same tokens count: those of the text of which the server says how sure they are."""
    assert told_of(entries(*tokens), text=text, stream=stream).logprobs == logprobs


def test_a_whole_answer_of_whose_first_token_alone_is_told() -> None:
    """What the entries lack is seen by the text, where these are fewer than its tokens."""
    assert told_of(entries(("It", -1.0)), text="It is so", stream=False).logprobs is None
    assert told_of(entries(("It", -1.0), (" is", -2.0)), text="It is so", stream=False).logprobs == [-1.0, -2.0]


@both_forms
def test_a_sure_token_counts_where_no_alternative_was_asked_for(stream: bool) -> None:
    """Only beside alternatives is 0.0 without any a sign that nothing is known of the token."""
    tokens = entries(("It", 0.0), (" is", 0.0))
    assert told_of(tokens, text="It is", stream=stream, tops_asked=False).logprobs == [0.0, 0.0]
    assert told_of(tokens, text="It is", stream=stream).logprobs is None


def test_one_entry_with_alternatives_shows_that_all_should_have_them() -> None:
    """Where the client asked for log-probabilities alone, a server may give alternatives all the same."""
    tokens = entries(("It", -1.0), (" is", 0.0), (" so", 0.0))
    assert told_of(tokens, text="It is so", stream=False, tops_asked=False).logprobs is None


@both_forms
def test_thoughts_and_calls_count(stream: bool) -> None:
    """Tokens beside the text are left out only of answers that are nothing but the text."""
    tokens = entries(("hm", -1.0), ("Yes", -2.0))
    assert told_of(tokens, text="Yes", stream=stream, more={"reasoning": "hm"}).logprobs == [-1.0, -2.0]
    call = {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": FUNCTION}]}
    assert told_of(tokens, text="Yes", stream=stream, more=call).logprobs == [-1.0, -2.0]
