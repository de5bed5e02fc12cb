"""LangChain's own standard tests for chat models, run in the environment of its clients against the gateway."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.clients.conftest import ClientsSetup
from tests.clients.test_published_clients import ENVIRONMENTS, FOLDER

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

NOT_APPLICABLE = {
    "test_stream_time": "compares with a recorded exchange of the provider's",
}
"""Tests that are skipped for both, and why they say nothing about the gateway."""
NOT_OF_CHAT = {
    "test_image_tool_message": "results of tools are texts in chat completions",
    "test_pdf_tool_message": "results of tools are texts in chat completions",
}
NOT_OF_RESPONSES = {
    "test_audio_inputs": "the Responses API takes no audio",
}
LEAST = 40
"""The suite's tests that pass for each API, at least."""


@pytest.mark.parametrize(("suite", "but"), [("TestChat", NOT_OF_CHAT), ("TestResponses", NOT_OF_RESPONSES)])
def test_standard_suite(clients: ClientsSetup, tmp_path: Path, suite: str, but: dict[str, str]) -> None:
    """All pass, but those that say of themselves that they do not apply."""
    runner = ENVIRONMENTS / "openai3" / "bin" / "python"
    if not runner.exists():
        pytest.skip("not installed: make clients")
    script, told = FOLDER / "python" / "standard_langchain.py", tmp_path / "told.xml"
    command = [str(runner), "-m", "pytest", "-q", f"{script}::{suite}", f"--junitxml={told}", "-c", os.devnull]
    command += [
        "--rootdir",
        str(script.parent),
        "--confcutdir",
        str(script.parent),
        "-p",
        "no:cacheprovider",
        "-o",
        "asyncio_mode=auto",
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LANG"))}
    env = kept | {"TIERLINE_URL": clients.gateway.origin, "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(script.parent)}
    done = subprocess.run(["timeout", "300", *command], check=False, env=env, capture_output=True, text=True)
    cases = list(ElementTree.parse(told).iter("testcase"))
    wrong = [case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = {str(case.get("name")).partition("[")[0] for case in cases if case.find("skipped") is not None}
    assert not wrong, done.stdout[-6000:]
    assert skipped == NOT_APPLICABLE.keys() | but.keys()
    assert len(cases) - len(skipped) >= LEAST
