"""Each client, as an application uses it, against one gateway over real sockets (`make clients` installs them)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import ClientsSetup
from tests.clients.scripted import CITY, HARD, PAUSE_S, PLAIN, SUNNY
from tests.support.gateway import ROOT

FOLDER = Path(__file__).parent
ENVIRONMENTS = ROOT / "build" / "clients"
RUN_S = 240
"""How long a client may take for all its scenarios; its imports take most of it on a busy machine."""

RETRY_AFTER_S = 0.9
"""How long the clients wait at least when they are told to wait a second; AI SDKs and others take off a jitter."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

_WORDS = len(PLAIN.split())
_CALLED = {"calls": [["weather", {"city": "Utrecht"}]], "text": SUNNY}
EXPECTED: dict[str, Any] = {
    "plain": {"text": PLAIN, "out": _WORDS},
    "again": {"text": PLAIN, "out": _WORDS},
    "stream": {"text": PLAIN, "out": _WORDS},
    "hard": {"text": HARD},
    "tools": _CALLED,
    "tools_stream": _CALLED,
    "structured": CITY,
    "structured_tools": CITY,
    "structured_json": CITY,
    "structured_stream": CITY,
    "structured_busy": CITY,
    "messages": {"text": PLAIN, "out": _WORDS},
    "responses": {"text": PLAIN, "out": _WORDS},
    "responses_stream": {"text": PLAIN, "out": _WORDS},
    "responses_tools": _CALLED,
    "responses_structured": CITY,
    "busy": {"text": PLAIN},
    "limited": {"text": PLAIN},
    "overloaded": {"text": PLAIN},
    "impatient": {"text": PLAIN},
    "leave": {"text": "word"},
    "agent": {"outputs": ["sunny"], "text": SUNNY},
    "count": {"counted": True},
    "embeddings": {"count": 2, "width": 256},
    "models": {"ids": ["auto", "chat", "flaky", "override", "refused", "standard"]},
}
"""What each scenario gives, whoever the client is."""


Raises = Sequence[tuple[str, int | None]]


@dataclass(frozen=True, eq=False)
class Client:
    """One client: its command, its scenarios, and the error classes that its users catch."""

    name: str
    command: tuple[str, ...]
    scenarios: tuple[str, ...]
    raises: Mapping[str, Raises] = field(default_factory=dict)
    """What each scenario that fails may raise: classes, or bases of them, each with its status."""
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: Path = ENVIRONMENTS
    """The file without which it is not installed."""


def python(
    environment: str, name: str, script: str, scenarios: str, raises: Mapping[str, Raises], **env: str
) -> Client:
    """Return a client whose script is one in `python/`."""
    command = (str(ENVIRONMENTS / environment / "bin" / "python"), str(FOLDER / "python" / script))
    return Client(name, command, (*scenarios.split(), *raises), raises, env, Path(command[0]))


def node(name: str, script: str, scenarios: str, raises: Mapping[str, Raises], **env: str) -> Client:
    """Return a client whose script is one in `node/`."""
    command = (shutil.which("node") or "node", str(FOLDER / "node" / script))
    return Client(name, command, (*scenarios.split(), *raises), raises, env, FOLDER / "node" / "node_modules" / "ai")


def coding_agent(name: str, program: str) -> Client:
    """Return a coding agent of `cli/`."""
    path = FOLDER / "cli" / "node_modules" / ".bin" / program
    command = (sys.executable, str(FOLDER / "python" / "use_coding_agent.py"))
    return Client(name, command, ("plain", "agent"), {}, {"AGENT": name, "PROGRAM": str(path)}, path)


_OPENAI = """plain again stream hard tools tools_stream structured responses responses_stream responses_tools
    responses_structured busy limited overloaded impatient leave embeddings models"""
_OPENAI_ERRORS: dict[str, Raises] = {
    "unknown_model": [("openai.NotFoundError", 404)],
    "bad_request": [("openai.BadRequestError", 400)],
    # The client tells its timeout: when both end at the same moment, either may be first.
    "slow": [("openai.APITimeoutError", None), ("openai.InternalServerError", 504)],
    "refused": [("openai.RateLimitError", 429)],
}
_SDK_ERRORS: dict[str, Raises] = _OPENAI_ERRORS | {
    "responses_unknown_model": [("openai.NotFoundError", 404)],
    "refused_stream": [("openai.RateLimitError", 429)],
}
_ANTHROPIC_ERRORS: dict[str, Raises] = {
    "unknown_model": [("anthropic.NotFoundError", 404)],
    "bad_request": [("anthropic.BadRequestError", 400)],
    "slow": [("anthropic.APITimeoutError", None), ("anthropic.InternalServerError", 504)],
    "refused": [("anthropic.RateLimitError", 429)],
    "refused_stream": [("anthropic.RateLimitError", 429)],
}
_AGENT_ERRORS: dict[str, Raises] = {"unknown_model": [("openai.NotFoundError", 404)]}
_PYDANTIC = "plain stream hard tools tools_stream structured_tools busy limited overloaded"
_PYDANTIC_ERRORS: dict[str, Raises] = {"unknown_model": [("pydantic_ai.ModelHTTPError", 404)]}
_LITELLM_ERRORS: dict[str, Raises] = {
    "unknown_model": [("litellm.NotFoundError", 404)],
    "bad_request": [("litellm.BadRequestError", 400)],
    "slow": [("litellm.Timeout", 408), ("litellm.InternalServerError", 504), ("litellm.Timeout", 504)],
    "refused": [("litellm.RateLimitError", 429)],
}
_NODE_ERRORS: dict[str, Raises] = {
    "unknown_model": [("NotFoundError", 404)],
    "responses_unknown_model": [("NotFoundError", 404)],
    "bad_request": [("BadRequestError", 400)],
    "slow": [("APIConnectionTimeoutError", None), ("InternalServerError", 504)],
    "refused": [("RateLimitError", 429)],
    "refused_stream": [("RateLimitError", 429)],
}
_AI_SDK_ERRORS: dict[str, Raises] = {
    "unknown_model": [("AI_APICallError", 404)],
    "unknown_model_stream": [("AI_APICallError", 404)],
    "slow": [("TimeoutError", None)],
    "refused": [("AI_APICallError", 429)],
    "refused_stream": [("AI_APICallError", 429)],
}
_CURL = "plain again stream hard tools responses_stream messages busy limited overloaded leave"
_CURL_ERRORS: dict[str, Raises] = {
    "unknown_model": [("__main__.CurlError", 404)],
    "bad_request": [("__main__.CurlError", 400)],
    "refused": [("__main__.CurlError", 429)],
    "refused_stream": [("__main__.CurlError", 429)],
    "slow": [("__main__.CurlTimeout", None)],
    "leave_by_time": [("__main__.CurlTimeout", None)],
}
CLIENTS = [
    python("openai2", "openai-python-2", "use_openai.py", _OPENAI, _SDK_ERRORS),
    python("openai3", "openai-python-3", "use_openai.py", _OPENAI, _SDK_ERRORS),
    python(
        "openai3",
        "anthropic-python",
        "use_anthropic.py",
        "plain again stream hard tools tools_stream structured_tools busy limited overloaded impatient leave count",
        _ANTHROPIC_ERRORS,
    ),
    *(
        python(
            "openai3",
            f"openai-agents-{api}",
            "use_agents.py",
            "plain stream hard tools tools_stream structured busy limited overloaded",
            _AGENT_ERRORS,
            API=api,
        )
        for api in ("responses", "chat")
    ),
    python(
        "openai3",
        "langchain",
        "use_langchain.py",
        """plain again stream hard tools tools_stream structured structured_tools responses responses_stream
        responses_tools busy limited overloaded leave embeddings""",
        _OPENAI_ERRORS,
    ),
    *(
        python("openai3", f"pydantic-ai-{api}", "use_pydantic_ai.py", _PYDANTIC, _PYDANTIC_ERRORS, API=api)
        for api in ("chat", "responses", "messages")
    ),
    python(
        "openai3",
        "llm",
        "use_llm.py",
        "plain stream hard tools tools_stream structured",
        {"unknown_model": [("builtins.RuntimeError", None)]},
    ),
    python(
        "openai2",
        "litellm",
        "use_litellm.py",
        """plain again stream hard tools tools_stream structured responses messages busy limited overloaded leave
        embeddings""",
        _LITELLM_ERRORS,
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    ),
    python(
        "openai2",
        "llama-index",
        "use_llama_index.py",
        "plain again stream hard tools tools_stream structured structured_tools busy limited overloaded leave",
        _OPENAI_ERRORS,
    ),
    python(
        "openai2",
        "instructor",
        "use_instructor.py",
        "structured structured_tools structured_json structured_stream structured_busy",
        {"unknown_model": [("instructor.InstructorRetryException", None)]},
    ),
    *(node(f"openai-node-{one}", "use_openai.mjs", _OPENAI, _NODE_ERRORS, PACKAGE=f"openai{one}") for one in (6, 7)),
    *(
        node(
            f"ai-sdk-{provider}",
            "use_ai_sdk.mjs",
            "plain again stream hard tools tools_stream structured busy limited overloaded leave embeddings",
            _AI_SDK_ERRORS,
            PROVIDER=provider,
        )
        for provider in ("openai", "compatible")
    ),
    node(
        "ai-sdk-anthropic",
        "use_ai_sdk.mjs",
        "plain again stream hard tools tools_stream busy limited overloaded leave",
        _AI_SDK_ERRORS,
        PROVIDER="anthropic",
    ),
    Client(
        "curl",
        (sys.executable, str(FOLDER / "python" / "use_curl.py")),
        (*_CURL.split(), *_CURL_ERRORS),
        _CURL_ERRORS,
        needs=Path(shutil.which("curl") or "curl"),
    ),
    coding_agent("claude-code", "claude"),
    coding_agent("codex", "codex"),
]


@cache
def ran(client: Client, origin: str) -> subprocess.CompletedProcess[str]:
    """Run a client's script, once for all tests of its scenarios."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANTHROPIC_"))}
    env = kept | {"TIERLINE_URL": origin, "CLIENT": client.name, "NO_PROXY": "127.0.0.1", "PYTHONWARNINGS": "ignore"}
    env |= client.environment
    limit = ("timeout", str(RUN_S))
    return subprocess.run([*limit, *client.command], check=False, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("client", "scenario"),
    [pytest.param(one, name, id=f"{one.name}-{name}") for one in CLIENTS for name in one.scenarios],
)
def test_client(clients: ClientsSetup, client: Client, scenario: str) -> None:
    """The scenario gives what it should, or raises what this client's users catch."""
    if not client.needs.exists():
        pytest.skip("not installed: make clients")
    done = ran(client, clients.gateway.origin)
    assert done.returncode == 0, done.stderr[-4000:]
    outcome = json.loads(done.stdout.splitlines()[-1])[scenario]
    if scenario in client.raises:
        assert "raised" in outcome, outcome
        expected = client.raises[scenario]
        assert any(name in outcome["kinds"] and outcome["status"] == status for name, status in expected), outcome
        if outcome["retry_after"] is not None:
            assert 1 <= int(outcome["retry_after"]) <= PAUSE_S
    else:
        assert "value" in outcome, outcome["trace"]
        assert outcome["value"] == EXPECTED[scenario]
    after(clients, client.name, scenario)


def after(clients: ClientsSetup, client: str, scenario: str) -> None:
    """Look at what a scenario caused behind the gateway."""
    calls = clients.calls(client, scenario)
    match scenario:
        case "again":
            assert len(clients.calls(client, "plain")) == 1, "the second was the cache's"
        case "hard":
            assert [call.body["model"] for call in calls] == ["small", "large"]
        case "busy" | "limited" | "overloaded" | "structured_busy":
            first, second = calls
            assert second.at - first.at >= RETRY_AFTER_S
        case "refused" | "refused_stream":
            assert len(calls) <= 1, "a model that asks for a pause is not called meanwhile"
        case "impatient":
            first, *_ = calls
            first.wait_gone()
            assert len(calls) >= 2
        case "leave" | "leave_by_time" | "slow":
            for call in calls:
                call.wait_gone()
