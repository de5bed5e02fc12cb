"""The OpenAI Agents SDK, over /v1/responses (its default) and over chat completions: API=responses or API=chat."""

from __future__ import annotations

import os
from typing import Any

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from pydantic import BaseModel
from scenarios import FLAKY, MODEL, NOBODY, URL, prompt, run

set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=URL, api_key="any", max_retries=2, timeout=20)
calls: list[Any] = []


class City(BaseModel):
    name: str
    country: str


@function_tool
def weather(city: str) -> str:
    """The weather in a city"""
    calls.append(["weather", {"city": city}])
    return "sunny"


def agent(model: str = MODEL, **more: Any) -> Agent:
    kind = OpenAIResponsesModel if os.environ["API"] == "responses" else OpenAIChatCompletionsModel
    settings = ModelSettings(include_usage=True)
    return Agent(name="guide", model=kind(model=model, openai_client=client), model_settings=settings, **more)


async def plain() -> Any:
    got = await Runner.run(agent(), prompt("plain"))
    return {"text": got.final_output, "out": got.context_wrapper.usage.output_tokens}


async def stream() -> Any:
    return await streamed(agent(), "stream")


async def streamed(asked: Agent, name: str) -> Any:
    got = Runner.run_streamed(asked, prompt(name))
    parts = [
        event.data.delta
        async for event in got.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(parts) == got.final_output
    return {"text": got.final_output, "out": got.context_wrapper.usage.output_tokens}


async def hard() -> Any:
    return {"text": (await streamed(agent(), "hard"))["text"]}


async def tools() -> Any:
    calls.clear()
    got = await Runner.run(agent(tools=[weather]), prompt("tools"))
    return {"calls": calls, "text": got.final_output}


async def tools_stream() -> Any:
    calls.clear()
    got = await streamed(agent(tools=[weather]), "tools_stream")
    return {"calls": calls, "text": got["text"]}


async def structured() -> Any:
    return (await Runner.run(agent(output_type=City), prompt("structured"))).final_output.model_dump()


async def unknown_model() -> Any:
    await Runner.run(agent(NOBODY), prompt("unknown_model"))


async def busy() -> Any:
    return {"text": (await Runner.run(agent(FLAKY), prompt("busy"))).final_output}


async def limited() -> Any:
    return {"text": (await Runner.run(agent(FLAKY), prompt("limited"))).final_output}


async def overloaded() -> Any:
    return {"text": (await Runner.run(agent(FLAKY), prompt("overloaded"))).final_output}


run(plain, stream, hard, tools, tools_stream, structured, unknown_model, busy, limited, overloaded)
