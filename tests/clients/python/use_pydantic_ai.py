"""pydantic-ai, over chat completions, /v1/responses and Anthropic's /v1/messages: API=chat, responses or messages."""

from __future__ import annotations

import os
from typing import Any

import anthropic
import openai
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from scenarios import FLAKY, MODEL, NOBODY, ORIGIN, URL, prompt, run

calls: list[Any] = []


class City(BaseModel):
    """A city"""

    name: str
    country: str


def agent(model: str = MODEL, **more: Any) -> Agent:
    openai_client = openai.AsyncOpenAI(base_url=URL, api_key="any", max_retries=2, timeout=20)
    if os.environ["API"] == "messages":
        client = anthropic.AsyncAnthropic(base_url=ORIGIN, api_key="any", max_retries=2, timeout=20)
        return Agent(AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client)), **more)
    kind = OpenAIResponsesModel if os.environ["API"] == "responses" else OpenAIChatModel
    return Agent(kind(model, provider=OpenAIProvider(openai_client=openai_client)), **more)


def weather(city: str) -> str:
    """The weather in a city"""
    calls.append(["weather", {"city": city}])
    return "sunny"


async def plain() -> Any:
    got = await agent().run(prompt("plain"))
    return {"text": got.output, "out": got.usage.output_tokens}


async def stream() -> Any:
    async with agent().run_stream(prompt("stream")) as got:
        text = "".join([part async for part in got.stream_text(delta=True)])
    return {"text": text, "out": got.usage.output_tokens}


async def hard() -> Any:
    async with agent().run_stream(prompt("hard")) as got:
        return {"text": await got.get_output()}


async def tools() -> Any:
    calls.clear()
    got = await agent(tools=[weather]).run(prompt("tools"))
    return {"calls": list(calls), "text": got.output}


async def tools_stream() -> Any:
    calls.clear()
    async with agent(tools=[weather]).run_stream(prompt("tools_stream")) as got:
        return {"text": await got.get_output(), "calls": list(calls)}


async def structured_tools() -> Any:
    return (await agent(output_type=City).run(prompt("structured_tools"))).output.model_dump()


async def unknown_model() -> Any:
    await agent(NOBODY).run(prompt("unknown_model"))


async def busy() -> Any:
    return {"text": (await agent(FLAKY).run(prompt("busy"))).output}


async def limited() -> Any:
    return {"text": (await agent(FLAKY).run(prompt("limited"))).output}


async def overloaded() -> Any:
    return {"text": (await agent(FLAKY).run(prompt("overloaded"))).output}


run(plain, stream, hard, tools, tools_stream, structured_tools, unknown_model, busy, limited, overloaded)
