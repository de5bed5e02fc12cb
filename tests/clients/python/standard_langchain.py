"""LangChain's own standard tests for chat models, of ChatOpenAI over chat completions and over /v1/responses.

Run by pytest in the environment of the clients. What the tests would fetch from the network (a picture, a sound) is a
stand-in of the same type, as the scripted model looks at none.
"""

from __future__ import annotations

import base64
from typing import Any

import httpx
import openai
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests, chat_models
from scenarios import OVERRIDE, STANDARD, URL

_PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fetched:
        content = _PICTURE

    monkeypatch.setattr(httpx, "get", lambda *_, **__: Fetched())
    monkeypatch.setattr(chat_models, "_get_base64_from_url", lambda _: base64.b64encode(_PICTURE).decode())


class TestChat(ChatModelIntegrationTests):
    """Over chat completions."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # ChatOpenAI would keep connections of the first event loop for all models, and each test has a loop of its own.
        connections = openai.DefaultAsyncHttpxClient()
        given = {"base_url": URL, "api_key": "any", "model": STANDARD, "stream_usage": True, "max_retries": 0}
        return given | {"http_async_client": connections}

    supports_image_inputs = True
    supports_image_urls = True
    supports_image_tool_message = False
    supports_pdf_inputs = True
    supports_audio_inputs = True
    supports_json_mode = True
    supports_anthropic_inputs = True
    supports_model_override = True
    model_override_value = OVERRIDE


class TestResponses(TestChat):
    """Over /v1/responses, which has no audio, but pictures and files as results of tools."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}

    supports_audio_inputs = False
    supports_image_tool_message = True
    supports_pdf_tool_message = True
