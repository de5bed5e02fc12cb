"""instructor: answers as objects, by tools, by JSON schema, and streamed in parts."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from pydantic import BaseModel
from scenarios import FLAKY, MODEL, NOBODY, URL, run, user


class City(BaseModel):
    """A city"""

    name: str
    country: str


client = openai.OpenAI(base_url=URL, api_key="any", max_retries=2, timeout=20)


def asked(name: str, mode: instructor.Mode, model: str = MODEL) -> Any:
    made = instructor.from_openai(client, mode=mode)
    got = made.chat.completions.create(model=model, messages=user(name), response_model=City, max_retries=0)
    return got.model_dump()


def structured() -> Any:
    return asked("structured", instructor.Mode.JSON_SCHEMA)


def structured_tools() -> Any:
    return asked("structured_tools", instructor.Mode.TOOLS)


def structured_json() -> Any:
    return asked("structured_json", instructor.Mode.JSON)


def structured_stream() -> Any:
    made = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    parts = made.chat.completions.create_partial(
        model=MODEL, messages=user("structured_stream"), response_model=City, max_retries=1
    )
    return [part.model_dump() for part in parts][-1]


def unknown_model() -> Any:
    asked("unknown_model", instructor.Mode.TOOLS, NOBODY)


def structured_busy() -> Any:
    return asked("structured_busy", instructor.Mode.JSON_SCHEMA, FLAKY)


run(structured, structured_tools, structured_json, structured_stream, unknown_model, structured_busy)
