"""anthropic-python: messages, whole and streamed, and its token count."""

from __future__ import annotations

from typing import Any

import anthropic
from scenarios import CITY, FLAKY, MODEL, NOBODY, ORIGIN, PARAMETERS, REFUSED, run, user

client = anthropic.Anthropic(base_url=ORIGIN, api_key="any", max_retries=0, timeout=20)
WEATHER: Any = {"name": "weather", "description": "The weather in a city", "input_schema": PARAMETERS}


def plain() -> Any:
    got = client.messages.create(model=MODEL, max_tokens=200, messages=user("plain"))
    return {"text": got.content[0].text, "out": got.usage.output_tokens}


def again() -> Any:
    return plain()


def stream() -> Any:
    with client.messages.stream(model=MODEL, max_tokens=200, messages=user("stream")) as events:
        text = "".join(events.text_stream)
        got = events.get_final_message()
    assert text == got.content[0].text
    return {"text": text, "out": got.usage.output_tokens}


def hard() -> Any:
    with client.messages.stream(model=MODEL, max_tokens=200, messages=user("hard")) as events:
        return {"text": events.get_final_text()}


def tools() -> Any:
    messages = user("tools")
    return answered(messages, client.messages.create(model=MODEL, max_tokens=200, messages=messages, tools=[WEATHER]))


def tools_stream() -> Any:
    messages = user("tools_stream")
    with client.messages.stream(model=MODEL, max_tokens=200, messages=messages, tools=[WEATHER]) as events:
        return answered(messages, events.get_final_message())


def answered(messages: list[Any], called: Any) -> Any:
    assert called.stop_reason == "tool_use"
    (call,) = [block for block in called.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages = [*messages, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    got = client.messages.create(model=MODEL, max_tokens=200, messages=messages, tools=[WEATHER])
    return {"calls": [[call.name, call.input]], "text": got.content[0].text}


def structured_tools() -> Any:
    tool: Any = {"name": "City", "description": "A city", "input_schema": CITY}
    got = client.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=user("structured_tools"),
        tools=[tool],
        tool_choice={"type": "tool", "name": "City"},
    )
    return got.content[0].input


def unknown_model() -> Any:
    client.messages.create(model=NOBODY, max_tokens=200, messages=user("unknown_model"))


def bad_request() -> Any:
    client.messages.create(model=MODEL, max_tokens=200, messages="no list")


def retried(name: str) -> Any:
    patient = client.with_options(max_retries=2)
    return {"text": patient.messages.create(model=FLAKY, max_tokens=200, messages=user(name)).content[0].text}


def busy() -> Any:
    return retried("busy")


def limited() -> Any:
    return retried("limited")


def overloaded() -> Any:
    return retried("overloaded")


def refused() -> Any:
    client.messages.create(model=REFUSED, max_tokens=200, messages=user("refused"))


def refused_stream() -> Any:
    client.messages.create(model=REFUSED, max_tokens=200, messages=user("refused_stream"), stream=True)


def impatient() -> Any:
    hurried = client.with_options(max_retries=2, timeout=4)
    got = hurried.messages.create(model=FLAKY, max_tokens=200, messages=user("impatient"))
    return {"text": got.content[0].text}


def slow() -> Any:
    client.with_options(timeout=1).messages.create(model=MODEL, max_tokens=200, messages=user("slow"))


def leave() -> Any:
    with client.messages.stream(model=MODEL, max_tokens=200, messages=user("leave")) as events:
        return {"text": next(iter(events.text_stream)).split()[0]}


def count() -> Any:
    got = client.messages.count_tokens(model=MODEL, messages=user("count"))
    return {"counted": got.input_tokens > 3}


run(
    plain,
    again,
    stream,
    hard,
    tools,
    tools_stream,
    structured_tools,
    unknown_model,
    bad_request,
    busy,
    limited,
    overloaded,
    refused,
    refused_stream,
    impatient,
    slow,
    leave,
    count,
)
