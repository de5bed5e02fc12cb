"""LlamaIndex's OpenAILike, for models that are not OpenAI's own."""

from __future__ import annotations

from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from scenarios import FLAKY, MODEL, NOBODY, REFUSED, URL, prompt, run


class City(BaseModel):
    """A city"""

    name: str
    country: str


def weather(city: str) -> str:
    """The weather in a city"""
    return "sunny"


TOOL = FunctionTool.from_defaults(weather)


def model(name: str = MODEL, **more: Any) -> OpenAILike:
    kind = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0, "timeout": 20.0}
    return OpenAILike(model=name, api_base=URL, api_key="any", **kind | more)


def plain() -> Any:
    got = model().chat([ChatMessage(prompt("plain"))])
    return {"text": got.message.content, "out": got.raw.usage.completion_tokens}


def again() -> Any:
    return plain()


def stream() -> Any:
    asked = model(additional_kwargs={"stream_options": {"include_usage": True}})
    *_, last = asked.stream_chat([ChatMessage(prompt("stream"))])
    return {"text": last.message.content, "out": last.raw.usage.completion_tokens}


def hard() -> Any:
    return {"text": "".join(part.delta for part in model().stream_complete(prompt("hard")))}


def tools() -> Any:
    got = model().chat_with_tools([TOOL], prompt("tools"))
    return answered("tools", got)


def tools_stream() -> Any:
    *_, last = model().stream_chat_with_tools([TOOL], prompt("tools_stream"))
    return answered("tools_stream", last)


def answered(name: str, got: Any) -> Any:
    (call,) = model().get_tool_calls_from_response(got)
    result = ChatMessage("sunny", role="tool", additional_kwargs={"tool_call_id": call.tool_id})
    text = model().chat([ChatMessage(prompt(name)), got.message, result], tools=[TOOL.metadata.to_openai_tool()])
    return {"calls": [[call.tool_name, call.tool_kwargs]], "text": text.message.content}


def structured() -> Any:
    asked = model(should_use_structured_outputs=True)
    return asked.as_structured_llm(City).complete(prompt("structured")).raw.model_dump()


def structured_tools() -> Any:
    return model().as_structured_llm(City).complete(prompt("structured_tools")).raw.model_dump()


def unknown_model() -> Any:
    model(NOBODY).complete(prompt("unknown_model"))


def bad_request() -> Any:
    model(additional_kwargs={"tools": "no list"}).complete(prompt("bad_request"))


def busy() -> Any:
    return {"text": model(FLAKY, max_retries=2).complete(prompt("busy")).text}


def limited() -> Any:
    return {"text": model(FLAKY, max_retries=2).complete(prompt("limited")).text}


def overloaded() -> Any:
    return {"text": model(FLAKY, max_retries=2).complete(prompt("overloaded")).text}


def refused() -> Any:
    model(REFUSED).complete(prompt("refused"))


def slow() -> Any:
    model(timeout=1.0).complete(prompt("slow"))


def leave() -> Any:
    parts = model().stream_complete(prompt("leave"))
    text = next(part.delta for part in parts if part.delta)
    parts.close()
    return {"text": text}


run(
    plain, again, stream, hard, tools, tools_stream, structured, structured_tools, unknown_model, bad_request, busy,
    limited, overloaded, refused, slow, leave,
)  # fmt: skip
