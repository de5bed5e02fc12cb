"""A gateway whose tiers are called with identities of clouds, as a user runs it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from gateway.cli.main import main
from tests.support.clouds import Bedrock, Vertex
from tests.support.gateway import serve
from tests.support.wait import until

POLICY = """
surface: chat
slo: {deadline: 20s}
holdout: 0%
tiers: [vertex, bedrock]
route: {classifier: none, start: {vertex: otherwise}}
escalate: {no_signal: accept}
"""


def tiers(google: Vertex, aws: Bedrock) -> dict[str, Any]:
    return {
        "cross_encoder": "none",
        "tiers": [
            {
                "name": "vertex",
                "backends": [
                    {
                        "kind": "anthropic",
                        "base_url": f"{google.origin}{google.PROJECT}",
                        "model": "claude-haiku-4-5@20251001",
                        "auth": {"kind": "google"},
                    }
                ],
            },
            {
                "name": "bedrock",
                "backends": [
                    {
                        "kind": "anthropic",
                        "base_url": aws.origin,
                        "model": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
                        "auth": {"kind": "aws", "region": aws.REGION},
                    }
                ],
            },
        ],
    }


def test_a_ladder_of_two_clouds(tmp_path: Path) -> None:
    """Where one cloud's credentials cannot be had, /readyz says why, until they can, and the next tier answers.

    No secret is in the log or in what clients get.
    """
    with Vertex() as google, Bedrock() as aws:
        account = tmp_path / "account.json"
        env = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(account),
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": aws.credentials_url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        with serve(tmp_path, "", policies={"chat": POLICY}, settings=tiers(google, aws), env=env) as gateway:

            def degraded() -> list[str]:
                found: list[str] = httpx2.get(f"{gateway.origin}/readyz").json()["degraded"]
                return [one for one in found if "credentials" in one]

            until(degraded, 10, "no credentials")
            assert "backend vertex: credentials cannot be renewed: Google: " in degraded()[0]
            client = openai.OpenAI(base_url=gateway.url, api_key="any", max_retries=0)
            asked = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
            answer = client.chat.completions.with_raw_response.create(**asked)
            assert answer.headers["x-tierline-tier"] == "bedrock"

            account.write_text(google.account_file())
            until(lambda: not degraded(), 20, "credentials")
            claude = anthropic.Anthropic(base_url=gateway.origin, api_key="any", max_retries=0)
            betas = {"anthropic-beta": "context-1m-2025-08-07,one-more"}
            with claude.messages.stream(
                model="chat", max_tokens=100, messages=[{"role": "user", "content": "hi"}], extra_headers=betas
            ) as stream:
                message = stream.get_final_message()
            assert aws.requests[-1].body["anthropic_beta"] == ["context-1m-2025-08-07", "one-more"]
            assert message.usage.cache_read_input_tokens == 7
            log = gateway.log()
        secrets = [one.secret for cloud in (google, aws) for one in cloud.issued.values()]
        assert len(secrets) >= 2
        assert not any(secret in log for secret in secrets)
        assert (google.refused, aws.refused) == ([], [])


def test_a_server_of_credentials_that_is_silent_keeps_nothing_up(tmp_path: Path) -> None:
    """The next tier answers by the deadline, and the gateway stops as ever: the library would wait for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as silent, Vertex() as google, Bedrock() as aws:
        account = tmp_path / "account.json"
        told = json.loads(google.account_file()) | {"token_uri": f"http://127.0.0.1:{silent.getsockname()[1]}/token"}
        account.write_text(json.dumps(told))
        env = {"GOOGLE_APPLICATION_CREDENTIALS": str(account)}
        with serve(tmp_path, "", policies={"chat": POLICY}, settings=tiers(google, aws), env=env) as gateway:
            silent.settimeout(20)
            with silent.accept()[0]:
                assert gateway.stop() == 0


def test_check_tries_the_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be had is a warning at its key; what can is none."""
    with Vertex() as google, Bedrock() as aws:
        account = tmp_path / "account.json"
        account.write_text(google.account_file())
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", aws.credentials_url)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        config, policies = tmp_path / "tierline.json", tmp_path / "policies"
        policies.mkdir()
        (policies / "chat.yaml").write_text(POLICY)
        config.write_text(json.dumps(tiers(google, aws)))
        command = ["check", "--config", str(config), "--policies", str(policies), "--json"]
        assert main(command) == 0
        assert "credentials" not in capsys.readouterr().out
        google.failing = True
        assert main(command) == 0
        [warning] = [one for one in json.loads(capsys.readouterr().out)["warnings"] if "credentials" in one["message"]]
    assert warning["key"] == "tiers[0].backends[0].auth"
    assert warning["message"].startswith("no credentials can be had: Google: ")
