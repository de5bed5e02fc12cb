"""How sure a real server's answers are: the shipped model by llama.cpp behind a gateway, with and without a drafter."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.bench.drafters import DATA, DRAFTERS, apart, asked, gateway_over, whole_and_streamed
from tests.support.llama import llama

pytestmark = [pytest.mark.real_model, pytest.mark.long]

ASKED: dict[str, Any] = tomllib.loads(DATA.read_text())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A client of a gateway over the model without a drafter.

    Its price keeps the gateway from asking what the template does with tools: it drops them.
    """
    folder = tmp_path_factory.mktemp("plain")
    price = {"input": 1, "output": 1}
    with llama(folder) as url, gateway_over(folder / "gateway", url, price=price) as client:
        yield client


def test_an_answer_is_as_sure_streamed_as_whole(plain: httpx2.Client) -> None:
    """In six scripts, with stop strings and JSON, for which text is held back or left out."""
    prompts = ASKED["prompts"]
    assert len(prompts) == 50
    answers = whole_and_streamed(plain, prompts)
    assert [(prompt, pair) for prompt, pair in zip(prompts, answers, strict=True) if apart(*pair)] == []
    assert sum(whole.confidence is not None for whole, _ in answers) > 40


@pytest.mark.parametrize("watched", [False, True], ids=["", "watched"])
def test_a_drafter_makes_no_answer_sure(plain: httpx2.Client, tmp_path: Any, watched: bool) -> None:
    """What is proposed comes as if it were certain: most of an answer being so, there is no signal."""
    with (
        llama(tmp_path, *DRAFTERS["draft"]) as url,
        gateway_over(tmp_path / "gateway", url, watch_drafts=watched) as drafted,
    ):
        for question in ASKED["questions"][:4]:
            before = asked(plain, "any", question["ask"])
            for stream in (False, True):
                assert asked(drafted, "chat", question["ask"], stream=stream).tier == "hosted"
                served = asked(drafted, "any", question["ask"], stream=stream)
                assert (served.text, served.confidence) == (before.text, None)


def test_an_answer_to_a_request_with_tools_is_as_sure_streamed_as_whole(plain: httpx2.Client) -> None:
    """llama.cpp refuses log-probabilities of such a stream: where it would be thrown away, it is asked for whole."""
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    for question in ASKED["questions"][:3]:
        whole = asked(plain, "told", question["ask"], tools=tools)
        streamed = asked(plain, "told", question["ask"], stream=True, tools=tools)
        assert whole.tier == streamed.tier == "local"
        assert whole.text == streamed.text and whole.confidence is not None
        assert not apart(whole, streamed)
