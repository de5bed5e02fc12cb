"""Request bytes to a checked body: what is refused, with which code and which parameter."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.config.schema import Limits
from gateway.errors import InvalidRequest
from gateway.request import body as request_body
from gateway.request.body import MAX_DEPTH, ChatBodies, parse_json

BODIES = ChatBodies(Limits())
parse_chat = BODIES.parse
USER = {"role": "user", "content": "hi"}


def chat(**changes: object) -> bytes:
    return orjson.dumps({"model": "chat", "messages": [USER], **changes})


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"{} x", "invalid_json"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
        ('{"a": 1}'.encode("utf-16"), "invalid_json"),
        (b'{"a": NaN}', "invalid_json"),
        (b'{"a": 1e999}', "invalid_json"),
        (b'{"a": ' + b"1" * 5000 + b"}", "invalid_json"),
        (b"[" * 5000, "invalid_json"),
        (b"[" * 65 + b"]" * 65, "invalid_json"),
        (b'{"a": "\xff"}', "invalid_utf8"),
        (b'{"a": "\\ud800"}', "invalid_utf8"),
        (b'{"a": {"b": 1, "b": 2}}', "unsupported_value"),
    ],
)
def test_what_is_not_json_is_refused(raw: bytes, code: str) -> None:
    """Every way of not being plain JSON ends in a 400 with its code."""
    with pytest.raises(InvalidRequest) as refused:
        parse_json(raw)
    assert refused.value.code == code
    assert refused.value.status == 400


def test_the_deepest_allowed_body_passes() -> None:
    """64 levels are in, as the limit says."""
    raw = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert orjson.dumps(parse_json(raw)) == raw


def test_duplicate_keys_hide_behind_no_spelling() -> None:
    """An escaped key is the same key."""
    with pytest.raises(InvalidRequest) as refused:
        parse_json(b'{"role":"user","r\\u006fle":"system"}')
    assert refused.value.param == "role"


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"[1]", "invalid_type", None),
        (b'{"model": "chat"}', "missing_required_parameter", "messages"),
        (orjson.dumps({"messages": [USER]}), "missing_required_parameter", "model"),
        (chat(model=1), "invalid_type", "model"),
        (chat(model="a\nb"), "unsupported_value", "model"),
        (chat(messages="x"), "invalid_type", "messages"),
        (chat(messages=[]), "invalid_type", "messages"),
        (chat(messages=[1]), "invalid_type", "messages[0]"),
        (chat(messages=[{}]), "missing_required_parameter", "messages[0].role"),
        (chat(messages=[{"role": 9, "content": "x"}]), "invalid_type", "messages[0].role"),
        (chat(messages=[USER, {"role": "user"}]), "missing_required_parameter", "messages[1].content"),
        (chat(messages=[{"role": "user", "content": 5}]), "invalid_type", "messages[0].content"),
        (chat(messages=[{"role": "user", "content": ["x"]}]), "invalid_type", "messages[0].content[0]"),
        (chat(stream="yes"), "invalid_type", "stream"),
        (chat(stream_options=[]), "invalid_type", "stream_options"),
        (chat(n="2"), "invalid_type", "n"),
        (chat(n=10**9), "unsupported_value", "n"),
        (chat(max_tokens=-1), "unsupported_value", "max_tokens"),
        (chat(max_completion_tokens=1.5), "invalid_type", "max_completion_tokens"),
        (chat(temperature="0.5"), "invalid_type", "temperature"),
        (chat(temperature=True), "invalid_type", "temperature"),
        (chat(top_p=[0.5]), "invalid_type", "top_p"),
        (chat(seed=1.5), "invalid_type", "seed"),
        (chat(logprobs=5), "invalid_type", "logprobs"),
        (chat(stop=1), "invalid_type", "stop"),
        (chat(stop=["a", None]), "invalid_type", "stop[1]"),
        (chat(stream_options={"include_usage": "no"}), "invalid_type", "stream_options.include_usage"),
        (chat(prompt_cache_key=1), "invalid_type", "prompt_cache_key"),
        (
            chat(response_format={"type": "json_schema", "json_schema": 1}),
            "invalid_type",
            "response_format.json_schema",
        ),
        (chat(tools={}), "invalid_type", "tools"),
        (chat(tools=[1]), "invalid_type", "tools[0]"),
        (chat(tools=[{}, {"function": "f"}]), "invalid_type", "tools[1].function"),
        (chat(tools=[{"function": {"name": 1}}]), "invalid_type", "tools[0].function.name"),
        (chat(functions=[{"name": []}]), "invalid_type", "functions[0].name"),
        (
            chat(messages=[{"role": "user", "content": [{"type": "text", "text": 1}]}]),
            "invalid_type",
            "messages[0].content[0].text",
        ),
    ],
)
def test_what_is_not_a_chat_completion_is_refused(raw: bytes, code: str, param: str | None) -> None:
    """The error names the parameter, as OpenAI's does."""
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(raw)
    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_no_tokens_at_all_can_be_asked_for(name: str) -> None:
    """What a limit of 0 means is the backend's affair: OpenAI's own clients send it."""
    assert parse_chat(chat(**{name: 0}))[name] == 0


OPTIONAL = (
    *("temperature", "top_p", "n", "seed", "logprobs", "max_tokens", "max_completion_tokens", "stop", "stream"),
    *("stream_options", "response_format", "tools", "functions", "prompt_cache_key"),
)


@pytest.mark.parametrize("name", OPTIONAL)
def test_null_is_as_good_as_nothing(name: str) -> None:
    """Many clients send every field they know of, and null where nothing was chosen."""
    assert parse_chat(chat(**{name: None}))[name] is None


def test_unknown_fields_and_tool_calls_pass() -> None:
    """What is not ours to judge goes through untouched."""
    call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]}
    result = {"role": "function", "name": "f", "content": None}
    raw = chat(messages=[USER, call, result], top_k=3, chat_template_kwargs={"thinking": False}, stream=None)
    assert parse_chat(raw) == orjson.loads(raw)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**30, [1, 10**20], [[10**20]], {"inner": 10**20}])
def test_an_integer_that_would_lose_digits_is_refused(value: object) -> None:
    """More than 64 bits would reach the backend as a rounded float; the error names the key that holds it."""
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(chat()[:-1] + b',"x":' + json.dumps(value).encode() + b"}")
    assert refused.value.code == "unsupported_value"
    assert refused.value.param == ("inner" if isinstance(value, dict) else "x")


@pytest.mark.parametrize("value", [2**64 - 1, -(2**63), [2**63], 0.1234567890123456789, "1" * 40, 1e30])
def test_what_keeps_its_digits_passes(value: object) -> None:
    """The largest integers, long fractions and digits in text are none of that."""
    raw = json.dumps({"model": "chat", "messages": [USER], "x": value}, indent=1).encode()
    assert parse_chat(raw)["x"] == value


JSON = st.recursive(
    st.none()
    | st.integers(-(2**66), 2**66)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from('a"\\\\:,{}[]\n1\u00e9\U0001f600'), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "\\", '"', ":"]), inner),
    max_leaves=20,
)


@settings(max_examples=150, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    value=JSON, indent=st.sampled_from([None, 1]), ascii_only=st.booleans(), size=st.integers(1, 9), swap=st.booleans()
)
@example(value={"a": 1, "b": 2}, indent=1, ascii_only=True, size=3, swap=True)
def test_a_large_body_is_read_as_a_small_one_is(
    monkeypatch: pytest.MonkeyPatch, value: Any, indent: int | None, ascii_only: bool, size: int, swap: bool
) -> None:
    """The same value, or the same refusal: of equal keys, of integers of more than 64 bits."""
    monkeypatch.setattr(request_body, "_SLICE_BYTES", size)
    monkeypatch.setattr(request_body, "_LONG_BYTES", size)
    raw = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    if swap:
        raw = raw.replace(b'"b":', b'"a":')  # now some keys may be there twice

    def read(parse: Callable[[bytes], Any]) -> object:
        try:
            return orjson.dumps(parse(raw))
        except InvalidRequest as refused:
            return refused.body()

    assert read(partial(request_body._parse_large, most_values=10_000)) == read(parse_json)


@pytest.mark.parametrize("values", [10_000, 10_001])
async def test_values_are_counted_before_they_are_made(values: int) -> None:
    """What stands in a text does not count, however it is quoted; one value more than the limit is refused."""
    bodies = ChatBodies(Limits(values=10_000))
    text = '{"a": [1, 2, 3]}, \\ \\" ' * 10_000
    raw = json.dumps({"model": "chat", "messages": [USER | {"content": text}], "x": [1] * (values - 6)}).encode()
    if values == 10_000:
        assert (await bodies.read(raw))[0]["messages"][0]["content"] == text
    else:
        with pytest.raises(InvalidRequest, match=r"more than 10000 values.*limits\.values") as refused:
            await bodies.read(raw)
        assert refused.value.code == "unsupported_value"


@pytest.mark.parametrize(
    ("field", "entry", "most"),
    [
        ("stop", "x", 64),
        ("tools", {"type": "function", "function": {"name": "f"}}, 512),
        ("functions", {"name": "f"}, 512),
        ("messages", USER, 10_000),
    ],
)
def test_so_many_entries_are_taken(field: str, entry: object, most: int) -> None:
    """One more is refused, and the error says which limit of the config it is."""
    assert len(parse_chat(chat(**{field: [entry] * most}))[field]) == most
    with pytest.raises(InvalidRequest, match=rf"at most {most} are taken \(limits\.\w+\)") as refused:
        parse_chat(chat(**{field: [entry] * (most + 1)}))
    assert (refused.value.code, refused.value.param) == ("unsupported_value", field)


_LONG = 3 * request_body._LONG_BYTES


@pytest.mark.parametrize(
    "text",
    [
        "a" * _LONG,
        "日本" * _LONG,
        "a" * _LONG + "\\n",
        "\\u0041" * _LONG,
        '\\"a' * _LONG,
        "a" * _LONG + "\n",
        "a" * _LONG + "\ud800",
    ],
    ids=["plain", "chinese", "one_escape", "escapes", "quotes", "control", "surrogate"],
)
def test_a_long_text_is_parsed_as_a_short_one_is(text: str) -> None:
    """It is decoded by itself where that is the same: beside others, as a key, and twice."""
    raw = f'{{"a":["{text}","b"],"{text}":1,"c":{{"d":"{text}"}}}}'.encode("utf-8", "surrogatepass")

    def read(parse: Callable[[bytes], Any]) -> Any:
        try:
            return parse(raw)
        except InvalidRequest as error:
            return str(error), error.code, error.param

    assert read(partial(request_body._parse_large, most_values=100)) == read(parse_json)


def test_what_is_long_and_no_text_is_parsed() -> None:
    """White space and numbers between two texts are no text."""
    raw = b'{"a":' + b" " * _LONG + b'["b",' + b"1," * _LONG + b'"c"]}'
    assert request_body._parse_large(raw, 10 * _LONG) == orjson.loads(raw)


async def test_a_large_body_does_not_hold_the_loop() -> None:
    """While it is read, other requests go on; what it says or what is wrong with it is told all the same."""
    raw = json.dumps({"model": "chat", "messages": [USER] * 9_000, "seed": 1}, indent=1).encode()
    for text in (raw, raw.replace(b'"seed": 1', b'"seed": 1, "seed": 2')):
        reading = asyncio.create_task(BODIES.read(text))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5
        if text is raw:
            assert len(reading.result()[0]["messages"]) == 9_000
        else:
            with pytest.raises(InvalidRequest, match="twice"):
                reading.result()
    assert await BODIES.read(chat()) == (orjson.loads(chat()), False)


TOKEN_LISTS = [
    b'{"model":"m","input":[[1,2],[3]],"dimensions":3}',
    b'{ "input" : [ [ 1 , 2 ] ,\n [3] ] }',
    b'{"x":"\\"input\\":[[1]]","input":[[1],[2]]}',
    b'{"x":{"input":[[1]]},"input":[[5],[2]]}',
    b'{"input":[[1],[]]}',
    b'{"input":[[1],"a"]}',
    b'{"input":[1,2]}',
    b'{"input":["a","b"]}',
    b'{"input":[[1,2],[3,]]}',
    b'{"input":[[1][2]]}',
    b'{"input":[[01]]}',
    b'{"input":[[1 2]]}',
    b'{"input":[[1]],"input":[[2]]}',
]


@pytest.mark.parametrize("raw", TOKEN_LISTS)
def test_lists_of_tokens_are_parsed_by_themselves_like_at_once(raw: bytes) -> None:
    """Whatever stands beside them; what is no such list is parsed, or refused, as any other value."""

    def read(parse: Any) -> Any:
        try:
            return parse(raw)
        except InvalidRequest as error:
            return error.code

    assert read(partial(request_body._parse_tokens, most_values=10_000)) == read(parse_json)


def test_very_many_lists_of_tokens_take_no_more_memory_than_the_body() -> None:
    """Thirty megabytes of them held Python's lock for 1.6 s, and 2.5 GB."""
    raw = b'{"input":[' + b"[1]," * 1_000_000 + b"[1]]}"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"limits\.values"):
            request_body._parse_tokens(raw, most_values=100_000)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(raw)
    finally:
        tracemalloc.stop()


async def test_twenty_tokens_count_as_one_value() -> None:
    """A batch of embeddings may have many more tokens than a chat may have values."""
    bodies = ChatBodies(Limits(values=10_000))
    raw = json.dumps({"input": [[7] * 1000] * 199}).encode()
    body, large = await bodies.read_object(raw, tokens=True)
    assert large and sum(map(len, body["input"])) == 199_000
    with pytest.raises(InvalidRequest, match=r"limits\.values"):
        await bodies.read_object(raw)
    with pytest.raises(InvalidRequest, match="more than 200000 tokens"):
        await bodies.read_object(json.dumps({"input": [[7] * 1000] * 202}).encode(), tokens=True)
