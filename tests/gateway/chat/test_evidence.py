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
