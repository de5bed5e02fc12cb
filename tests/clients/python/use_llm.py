"""`llm`, the command line tool, with the gateway as one of its own models (extra-openai-models.yaml)."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scenarios import MODEL, NOBODY, URL, prompt, run

folder = Path(tempfile.mkdtemp())
(folder / "extra-openai-models.yaml").write_text(
    "".join(
        f"- {{model_id: {name}, model_name: {name}, api_base: '{URL}', api_key_name: gateway, supports_tools: true, "
        "supports_schema: true}\n"
        for name in (MODEL, NOBODY)
    )
)
(folder / "keys.json").write_text('{"gateway": "any"}')
WEATHER = 'def weather(city: str) -> str:\n    """The weather in a city"""\n    return "sunny"\n'


def llm(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("llm")), *arguments]
    env = os.environ | {"LLM_USER_PATH": str(folder)}
    nothing = subprocess.DEVNULL  # it would wait for the rest of the prompt there
    done = subprocess.run(command, check=False, env=env, stdin=nothing, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def asked(name: str, *options: str, model: str = MODEL) -> str:
    return llm(prompt(name), "-m", model, *options).strip()


def logged(query: str) -> list[Any]:
    """Ask the tool's own log."""
    with sqlite3.connect(folder / "logs.db") as log:
        return log.execute(query).fetchall()


def usage() -> Any:
    return logged("select output_tokens from turns order by id desc limit 1")[0][0]


def plain() -> Any:
    return {"text": asked("plain", "--no-stream"), "out": usage()}


def stream() -> Any:
    return {"text": asked("stream"), "out": usage()}


def hard() -> Any:
    return {"text": asked("hard")}


def tools() -> Any:
    text = asked("tools", "--functions", WEATHER, "--no-stream")
    return {"calls": called(), "text": text}


def tools_stream() -> Any:
    text = asked("tools_stream", "--functions", WEATHER)
    return {"calls": called(), "text": text}


def called() -> Any:
    (payload,) = logged("select payload from parts where type = 'tool_call' order by id desc limit 1")[0]
    call = json.loads(payload)
    return [[call["name"], call["arguments"]]]


def structured() -> Any:
    return json.loads(asked("structured", "--schema", "name, country"))


def unknown_model() -> Any:
    asked("unknown_model", model=NOBODY)


run(plain, stream, hard, tools, tools_stream, structured, unknown_model)
