"""LangChain's ChatOpenAI, over chat completions and, with `use_responses_api`, over /v1/responses."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from scenarios import FLAKY, MODEL, NOBODY, REFUSED, URL, prompt, run


class City(BaseModel):
    """A city"""

    name: str
    country: str


@tool
def weather(city: str) -> str:
    """The weather in a city"""
    return "sunny"


def model(name: str = MODEL, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=URL, api_key="any", model=name, stream_usage=True, **{"max_retries": 0, "timeout": 20} | more
    )


def plain() -> Any:
    got = model().invoke(prompt("plain"))
    return {"text": got.text, "out": got.usage_metadata["output_tokens"]}


def again() -> Any:
    return plain()


def stream() -> Any:
    return streamed(model(), "stream")


def streamed(asked: Any, name: str) -> Any:
    parts = list(asked.stream(prompt(name)))
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    return {"text": whole.text, "out": whole.usage_metadata["output_tokens"]}


def hard() -> Any:
    return {"text": streamed(model(), "hard")["text"]}


def tools() -> Any:
    asked = model().bind_tools([weather])
    messages: list[Any] = [HumanMessage(prompt("tools"))]
    return answered(asked, messages, asked.invoke(messages))


def tools_stream() -> Any:
    asked = model().bind_tools([weather])
    messages: list[Any] = [HumanMessage(prompt("tools_stream"))]
    parts = list(asked.stream(messages))
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    return answered(asked, messages, whole)


def answered(asked: Any, messages: list[Any], called: Any) -> Any:
    (call,) = called.tool_calls
    got = asked.invoke([*messages, called, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])])
    return {"calls": [[call["name"], call["args"]]], "text": got.text}


def structured() -> Any:
    return model().with_structured_output(City).invoke(prompt("structured")).model_dump()


def structured_tools() -> Any:
    return (
        model().with_structured_output(City, method="function_calling").invoke(prompt("structured_tools")).model_dump()
    )


def responses() -> Any:
    got = model(use_responses_api=True).invoke(prompt("responses"))
    return {"text": got.text, "out": got.usage_metadata["output_tokens"]}


def responses_stream() -> Any:
    return streamed(model(use_responses_api=True), "responses_stream")


def responses_tools() -> Any:
    asked = model(use_responses_api=True).bind_tools([weather])
    messages: list[Any] = [HumanMessage(prompt("responses_tools"))]
    return answered(asked, messages, asked.invoke(messages))


def unknown_model() -> Any:
    model(NOBODY).invoke(prompt("unknown_model"))


def bad_request() -> Any:
    model(model_kwargs={"tools": "no list"}).invoke(prompt("bad_request"))


def busy() -> Any:
    return {"text": model(FLAKY, max_retries=2).invoke(prompt("busy")).text}


def limited() -> Any:
    return {"text": model(FLAKY, max_retries=2).invoke(prompt("limited")).text}


def overloaded() -> Any:
    return {"text": model(FLAKY, max_retries=2).invoke(prompt("overloaded")).text}


def refused() -> Any:
    model(REFUSED).invoke(prompt("refused"))


def slow() -> Any:
    model(timeout=1).invoke(prompt("slow"))


def leave() -> Any:
    parts = model().stream(prompt("leave"))
    text = next(part.text for part in parts if part.text)
    parts.close()
    return {"text": text}


def embeddings() -> Any:
    got = OpenAIEmbeddings(base_url=URL, api_key="any", model=MODEL, check_embedding_ctx_length=False)
    found = got.embed_documents(["one text", "another"])
    return {"count": len(found), "width": len(found[0])}


run(
    plain, again, stream, hard, tools, tools_stream, structured, structured_tools, responses, responses_stream,
    responses_tools, unknown_model, bad_request, busy, limited, overloaded, refused, slow, leave, embeddings,
)  # fmt: skip
