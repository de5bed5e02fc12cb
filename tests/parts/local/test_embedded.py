"""`tierline.Tierline` answers as the server does, called as the OpenAI SDK is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from gateway.parts.local.embedded import Fields
from tierline import RequestFailed, Tierline

TRIAL = Path(__file__).parents[3] / "deploy" / "trial"
PARIS = [{"role": "user", "content": "What is the capital of France?"}]
LYON = [{"role": "user", "content": "What is the weather like in Lyon?"}]


@pytest.fixture
async def tierline() -> AsyncIterator[Tierline]:
    async with Tierline(TRIAL / "tierline.yaml", TRIAL / "policies") as embedded:
        yield embedded


async def test_an_answer_reads_like_the_sdks(tierline: Tierline) -> None:
    """Members are attributes; the whole is what the SDK's own type takes; the headers say how it came about."""
    answer = await tierline.chat.completions.create(model="chat", messages=PARIS)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert ChatCompletion.model_validate(answer.to_dict()).usage is not None
    assert answer.headers["x-tierline-tier"] == "local"
    with pytest.raises(AttributeError, match=r"no member 'choise'; it has .*choices"):
        _ = answer.choise


async def test_a_doubtful_draft_is_escalated(tierline: Tierline) -> None:
    """The same pipeline: the next tier takes over before the caller has seen anything, streamed or not."""
    answer = await tierline.chat.completions.create(model="chat", messages=LYON)
    assert (answer.choices[0].message.content, answer.headers["x-tierline-path"]) == (
        "The large model knows.",
        "escalated",
    )
    stream = await tierline.chat.completions.create(
        model="chat", messages=LYON, stream=True, extra_headers={"x-tierline-cache": "no-cache"}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.get("content") or "" for chunk in chunks)
    assert (text, stream.headers["x-tierline-path"]) == ("The large model knows.", "escalated")
    assert all(ChatCompletionChunk.model_validate(chunk.to_dict()) for chunk in chunks)


async def test_an_error_has_the_members_of_the_envelope(tierline: Tierline) -> None:
    """What the server refuses with a status, the call raises, with the same code and field."""
    with pytest.raises(RequestFailed, match="nobody") as caught:
        await tierline.chat.completions.create(model="nobody", messages=PARIS)
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
    with pytest.raises(RequestFailed) as caught:
        await tierline.chat.completions.create(model="chat", messages=[])
    assert (caught.value.status_code, caught.value.param) == (400, "messages")


async def test_a_caller_that_leaves_is_a_client_that_disconnects(tierline: Tierline) -> None:
    """A cancelled call and a stream left early both end their request, and the next one is served."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await tierline.chat.completions.create(model="chat", messages=LYON, extra_body={"seed": 7})
    stream = await tierline.chat.completions.create(model="chat", messages=LYON, stream=True, extra_body={"seed": 8})
    async with stream:
        async for chunk in stream:
            assert chunk.object == "chat.completion.chunk"
            break
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "tierline.embedded"]
    answer = await tierline.chat.completions.create(model="chat", messages=PARIS)
    assert answer.choices[0].finish_reason == "stop"


async def in_hand(tierline: Tierline) -> int:
    """How many requests are under way, once those that were left have ended."""
    steps = tierline.chat.completions._steps
    assert steps is not None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while steps.gate.in_hand:
                await asyncio.sleep(0.005)
    return steps.gate.in_hand


async def test_a_stream_that_nobody_reads_ends_its_request(tmp_path: Path) -> None:
    """Whether it is forgotten, or held and left unread for longer than a client may."""
    config = tmp_path / "tierline.yaml"
    config.write_text((TRIAL / "tierline.yaml").read_text() + "\nlimits: {stall: 50ms}\n")
    async with Tierline(config, TRIAL / "policies") as tierline:
        create = partial(tierline.chat.completions.create, model="chat", messages=LYON, stream=True)
        stream = await create(extra_body={"seed": 1})
        assert await in_hand(tierline) == 0
        with pytest.raises(RequestFailed, match=r"not read for 0\.05 seconds") as caught:
            async for _ in stream:
                pass
        assert (caught.value.status_code, caught.value.code) == (408, "request_timeout")
    async with Tierline(TRIAL / "tierline.yaml", TRIAL / "policies") as tierline:
        stream = await tierline.chat.completions.create(model="chat", messages=LYON, stream=True)
        del stream
        gc.collect()
        assert await in_hand(tierline) == 0


async def test_it_is_a_context() -> None:
    """Outside its context it says what to do."""
    with pytest.raises(RuntimeError, match="async with"):
        await Tierline().chat.completions.create(model="chat", messages=PARIS)


def _optional_members(model: type[BaseModel], kind: str, found: dict[str, set[str]]) -> dict[str, set[str]]:
    """The members that a type of the SDK has without being sent, and those of all in it, by the member they are."""
    for name, member in model.model_fields.items():
        if not member.is_required():
            found.setdefault(kind, set()).add(name)
        for part in _models_in(member.annotation):
            _optional_members(part, name, found)
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def test_every_optional_member_of_the_sdks_objects_is_there() -> None:
    """None where it was not sent, in each object by the member that it is; it is no item, and no other name is."""
    found = _optional_members(ChatCompletionChunk, "", _optional_members(ChatCompletion, "", {}))
    assert {"", "choices", "message", "delta", "tool_calls", "usage"} <= found.keys()
    for kind, members in found.items():
        one = Fields({}) if not kind else getattr(Fields({kind: {}}), kind)
        assert [getattr(one, name) for name in members] == [None] * len(members), kind
        assert not set(one) & members and not hasattr(one, "choise")
        if kind:
            [listed] = getattr(Fields({kind: [{}]}), kind)
            assert all(getattr(listed, name) is None for name in members)


def test_the_readmes_own_program_runs(tmp_path: Path) -> None:
    """As it is written there, beside a config and a folder of policies."""
    text = (TRIAL.parents[1] / "gateway" / "README.md").read_text()
    section = text.partition("## In a Python program")[2]
    program = section.partition("```python\n")[2].partition("```")[0]
    assert "asyncio.run" in program
    shutil.copytree(TRIAL, tmp_path, dirs_exist_ok=True)
    (tmp_path / "program.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": str(TRIAL.parents[1])}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The capital of France is Paris.") == 2, done.stdout


def test_importing_it_imports_no_gateway() -> None:
    """A program that imports the name and asks nothing is not kept waiting."""
    code = (
        "import sys; from tierline import Tierline; Tierline('tierline.yaml')\n"
        "print([m for m in ('gateway.assembly', 'gateway.config.schema', 'numpy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
