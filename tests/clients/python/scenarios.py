"""What the scripts share: the prompts that the scripted models know, and how what came of them is printed.

Each script hands its functions to `run`, which calls them one after the other and prints one JSON object: under each
function's name `{"value": ...}`, or `{"raised": "openai.NotFoundError", "status": 404, ...}`. Standard library only.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ORIGIN = os.environ.get("TIERLINE_URL", "")
"""The gateway's URL without a path."""
URL = f"{ORIGIN}/v1"
NAME = os.environ.get("CLIENT") or Path(sys.argv[0]).stem
"""Ends every prompt, so that no client gets another's answer from the cache."""
MODEL, FLAKY, REFUSED, NOBODY = "chat", "flaky", "refused", "no-such-model"
"""Models: two tiers, the weaker first; one whose backend is busy at first; one that always is; one not there."""
STANDARD, OVERRIDE = "standard", "override"
"""Models that know the prompts of LangChain's standard tests; a tier each."""


def prompt(name: str) -> str:
    """Give the prompt of a scenario, as the scripted models know it."""
    return f"{name}-task for {NAME}"


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city", "parameters": PARAMETERS},
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "country": {"type": "string"}},
    "required": ["name", "country"],
    "additionalProperties": False,
}


def user(name: str) -> list[dict[str, Any]]:
    """Give the one message of a scenario."""
    return [{"role": "user", "content": prompt(name)}]


def run(*functions: Callable[[], Any]) -> None:
    """Call each function, and print what came of all."""
    with asyncio.Runner() as loop:  # one for all: clients keep connections of the first that they see
        print(json.dumps({function.__name__: outcome(function, loop) for function in functions}))


def outcome(function: Callable[[], Any], loop: asyncio.Runner) -> dict[str, Any]:
    """Say what a scenario gave or raised."""
    try:
        value = loop.run(function()) if inspect.iscoroutinefunction(function) else function()
    except Exception as error:  # noqa: BLE001  # told to the test, which knows what is expected
        names = [f"{one.__module__.partition('.')[0]}.{one.__name__}" for one in type(error).__mro__]
        trace = traceback.format_exc(limit=-6)
        status = getattr(error, "status_code", None)
        told = {"raised": names[0], "kinds": names, "status": status, "message": str(error), "trace": trace}
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        return told | {"retry_after": headers.get("retry-after")}
    return {"value": value}
