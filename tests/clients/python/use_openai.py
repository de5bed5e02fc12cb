"""openai-python, versions 2 and 3 alike: chat completions, responses, embeddings, models."""

from __future__ import annotations

import json
from typing import Any

import openai
from pydantic import BaseModel
from scenarios import FLAKY, MODEL, NOBODY, REFUSED, URL, WEATHER, prompt, run, user

client = openai.OpenAI(base_url=URL, api_key="any", max_retries=0, timeout=20)


class City(BaseModel):
    name: str
    country: str


def plain() -> Any:
    got = client.chat.completions.create(model=MODEL, messages=user("plain"))
    return {"text": got.choices[0].message.content, "out": got.usage.completion_tokens}


def again() -> Any:
    return plain()


def stream() -> Any:
    with client.chat.completions.stream(
        model=MODEL, messages=user("stream"), stream_options={"include_usage": True}
    ) as events:
        got = events.get_final_completion()
    return {"text": got.choices[0].message.content, "out": got.usage.completion_tokens}


def hard() -> Any:
    chunks = list(client.chat.completions.create(model=MODEL, messages=user("hard"), stream=True))
    assert len({(chunk.id, chunk.model) for chunk in chunks}) == 1
    return {"text": "".join(chunk.choices[0].delta.content or "" for chunk in chunks)}


def tools() -> Any:
    messages = user("tools")
    called = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER]).choices[0].message
    return answered(messages, called)


def tools_stream() -> Any:
    messages = user("tools_stream")
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=[WEATHER]) as events:
        called = events.get_final_completion().choices[0].message
    return answered(messages, called)


def answered(messages: list[Any], called: Any) -> Any:
    (call,) = called.tool_calls
    messages = [*messages, called.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    got = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    return {
        "calls": [[call.function.name, json.loads(call.function.arguments)]],
        "text": got.choices[0].message.content,
    }


def structured() -> Any:
    got = client.chat.completions.parse(model=MODEL, messages=user("structured"), response_format=City)
    return got.choices[0].message.parsed.model_dump()


def responses() -> Any:
    got = client.responses.create(model=MODEL, input=prompt("responses"))
    return {"text": got.output_text, "out": got.usage.output_tokens}


def responses_stream() -> Any:
    with client.responses.stream(model=MODEL, input=prompt("responses_stream")) as events:
        kinds = [event.type for event in events]
        got = events.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed"), kinds
    return {"text": got.output_text, "out": got.usage.output_tokens}


def responses_tools() -> Any:
    tool = {"type": "function", "strict": False, **WEATHER["function"]}
    asked = [{"role": "user", "content": prompt("responses_tools")}]
    called = client.responses.create(model=MODEL, input=asked, tools=[tool])
    (call,) = [item for item in called.output if item.type == "function_call"]
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    got = client.responses.create(model=MODEL, input=[answer], previous_response_id=called.id, tools=[tool])
    return {"calls": [[call.name, json.loads(call.arguments)]], "text": got.output_text}


def responses_structured() -> Any:
    got = client.responses.parse(model=MODEL, input=prompt("responses_structured"), text_format=City)
    return got.output_parsed.model_dump()


def unknown_model() -> Any:
    client.chat.completions.create(model=NOBODY, messages=user("unknown_model"))


def responses_unknown_model() -> Any:
    client.responses.create(model=NOBODY, input=prompt("unknown_model"))


def bad_request() -> Any:
    client.chat.completions.create(model=MODEL, messages="no list")


def retried(name: str) -> Any:
    patient = client.with_options(max_retries=2)
    return {"text": patient.chat.completions.create(model=FLAKY, messages=user(name)).choices[0].message.content}


def busy() -> Any:
    return retried("busy")


def limited() -> Any:
    return retried("limited")


def overloaded() -> Any:
    return retried("overloaded")


def refused() -> Any:
    client.chat.completions.create(model=REFUSED, messages=user("refused"))


def refused_stream() -> Any:
    client.chat.completions.create(model=REFUSED, messages=user("refused_stream"), stream=True)


def impatient() -> Any:
    hurried = client.with_options(max_retries=2, timeout=4)
    got = hurried.chat.completions.create(model=FLAKY, messages=user("impatient"))
    return {"text": got.choices[0].message.content}


def slow() -> Any:
    client.with_options(timeout=1).chat.completions.create(model=MODEL, messages=user("slow"))


def leave() -> Any:
    with client.chat.completions.create(model=MODEL, messages=user("leave"), stream=True) as chunks:
        return {"text": next(c.choices[0].delta.content for c in chunks if c.choices[0].delta.content)}


def embeddings() -> Any:
    got = client.embeddings.create(model=MODEL, input=["one text", "another"])
    return {"count": len(got.data), "width": len(got.data[0].embedding)}


def models() -> Any:
    return {"ids": [model.id for model in client.models.list()]}


run(
    plain, again, stream, hard, tools, tools_stream, structured, responses, responses_stream, responses_tools,
    responses_structured, unknown_model, responses_unknown_model, bad_request, busy, limited, overloaded, refused,
    refused_stream, impatient, slow, leave, embeddings, models,
)  # fmt: skip
