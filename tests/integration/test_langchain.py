"""LangChain's ChatOpenAI works by changing only the base URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.gateway import Gateway
from tests.support.upstream import Reply, ToolCall, Upstream

if TYPE_CHECKING:  # it takes seconds to import: only for these tests, not for all that are collected with them
    import langchain_openai


@pytest.fixture
def model(gateway: Gateway) -> langchain_openai.ChatOpenAI:
    langchain_openai = pytest.importorskip("langchain_openai")
    return langchain_openai.ChatOpenAI(
        base_url=gateway.url, api_key="any", model="chat", max_retries=0, timeout=30, stream_usage=True
    )


def test_invoke(model: langchain_openai.ChatOpenAI, local_upstream: Upstream) -> None:
    """`invoke` gives the message and its usage."""
    local_upstream.default = Reply(text="one two three")
    got = model.invoke("hi there")
    assert got.content == "one two three"
    assert got.usage_metadata["output_tokens"] == 3
    assert local_upstream.requests[0].body["messages"] == [{"role": "user", "content": "hi there"}]


def test_stream(model: langchain_openai.ChatOpenAI, local_upstream: Upstream) -> None:
    """`stream` gives the parts and, at the end, the usage."""
    local_upstream.default = Reply(text="one two three four five six")
    parts = list(model.stream("hi there"))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    assert whole.content == "one two three four five six"
    assert whole.usage_metadata["output_tokens"] == 6


async def test_async(model: langchain_openai.ChatOpenAI, local_upstream: Upstream) -> None:
    """`ainvoke` and `astream` work alike."""
    local_upstream.default = Reply(text="one two")
    assert (await model.ainvoke("hi there")).content == "one two"
    assert "".join([part.content async for part in model.astream("hi there")]) == "one two"


@pytest.mark.parametrize("stream", [False, True])
def test_bind_tools(model: langchain_openai.ChatOpenAI, local_upstream: Upstream, stream: bool) -> None:
    """A bound tool's call arrives with its arguments parsed."""

    def weather(city: str) -> str:
        """The weather in a city."""
        return city

    local_upstream.default = Reply(tool_calls=(ToolCall("weather", '{"city":"Utrecht"}'),))
    bound = model.bind_tools([weather])
    if stream:
        parts = list(bound.stream("how is it in Utrecht?"))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
    else:
        whole = bound.invoke("how is it in Utrecht?")
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("weather", {"city": "Utrecht"})]
    assert local_upstream.requests[0].body["tools"][0]["function"]["name"] == "weather"


def test_structured_output(model: langchain_openai.ChatOpenAI, local_upstream: Upstream) -> None:
    """JSON mode reaches the backend and its answer parses."""
    local_upstream.default = Reply(text='{"city": "Utrecht"}')
    asked = model.with_structured_output({"title": "City", "type": "object", "properties": {}}, method="json_mode")
    assert asked.invoke("where? in JSON") == {"city": "Utrecht"}
    assert local_upstream.requests[0].body["response_format"] == {"type": "json_object"}
