"""The LiteLLM SDK, with the gateway as an OpenAI-compatible provider, and as Anthropic."""

from __future__ import annotations

import json
from typing import Any

import litellm
from pydantic import BaseModel
from scenarios import FLAKY, MODEL, NOBODY, ORIGIN, REFUSED, URL, WEATHER, prompt, run, user

litellm.suppress_debug_info = True


class City(BaseModel):
    name: str
    country: str


def ask(name: str, model: str = MODEL, **more: Any) -> Any:
    common = {"messages": user(name), "api_base": URL, "api_key": "any", "max_retries": 0}
    return litellm.completion(f"openai/{model}", **common | {"timeout": 20} | more)


def plain() -> Any:
    got = ask("plain")
    return {"text": got.choices[0].message.content, "out": got.usage.completion_tokens}


def again() -> Any:
    return plain()


def stream() -> Any:
    chunks = list(ask("stream", stream=True, stream_options={"include_usage": True}))
    got = litellm.stream_chunk_builder(chunks)
    return {"text": got.choices[0].message.content, "out": got.usage.completion_tokens}


def hard() -> Any:
    return {"text": "".join(chunk.choices[0].delta.content or "" for chunk in ask("hard", stream=True))}


def tools() -> Any:
    return answered("tools", ask("tools", tools=[WEATHER]))


def tools_stream() -> Any:
    chunks = list(ask("tools_stream", tools=[WEATHER], stream=True))
    return answered("tools_stream", litellm.stream_chunk_builder(chunks))


def answered(name: str, got: Any) -> Any:
    called = got.choices[0].message
    (call,) = called.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [*user(name), called.model_dump(exclude_none=True), result]
    text = ask(name, messages=messages, tools=[WEATHER]).choices[0].message.content
    return {"calls": [[call.function.name, json.loads(call.function.arguments)]], "text": text}


def structured() -> Any:
    got = ask("structured", response_format=City)
    return json.loads(got.choices[0].message.content)


def responses() -> Any:
    got = litellm.responses(model=f"openai/{MODEL}", input=prompt("responses"), api_base=URL, api_key="any", timeout=20)
    return {"text": got.output[0].content[0].text, "out": got.usage.output_tokens}


def messages() -> Any:
    """Through LiteLLM's own Anthropic provider."""
    got = litellm.completion(
        f"anthropic/{MODEL}", messages=user("messages"), api_base=ORIGIN, api_key="any", timeout=20
    )
    return {"text": got.choices[0].message.content, "out": got.usage.completion_tokens}


def unknown_model() -> Any:
    ask("unknown_model", model=NOBODY)


def bad_request() -> Any:
    ask("bad_request", stop={"not": "a list"})


def busy() -> Any:
    return {"text": ask("busy", model=FLAKY, num_retries=2, max_retries=2).choices[0].message.content}


def limited() -> Any:
    return {"text": ask("limited", model=FLAKY, num_retries=2, max_retries=2).choices[0].message.content}


def overloaded() -> Any:
    return {"text": ask("overloaded", model=FLAKY, num_retries=2, max_retries=2).choices[0].message.content}


def refused() -> Any:
    ask("refused", model=REFUSED)


def slow() -> Any:
    ask("slow", timeout=1)


def leave() -> Any:
    chunks = ask("leave", stream=True)
    text = next(chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content)
    chunks.completion_stream.close()
    return {"text": text}


def embeddings() -> Any:
    got = litellm.embedding(f"openai/{MODEL}", input=["one text", "another"], api_base=URL, api_key="any")
    return {"count": len(got.data), "width": len(got.data[0]["embedding"])}


run(
    plain, again, stream, hard, tools, tools_stream, structured, responses, messages, unknown_model, bad_request, busy,
    limited, overloaded, refused, slow, leave, embeddings,
)  # fmt: skip
