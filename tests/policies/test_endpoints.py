"""Who answers what is not a chat: the services that a policy names, and what naming none changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import ConfigError
from policies.loader import PolicySource, read_policy
from policies.model import DeployedTier

PLAIN = """surface: chat
slo: {deadline: 20s}
tiers: [local]
route: {classifier: none, start: {local: otherwise}}
"""


def source_of(folder: Path, text: str, *services: str) -> PolicySource:
    (folder / "chat.yaml").write_text(PLAIN + text)
    return PolicySource(folder, (DeployedTier("local"),), services=services)


def test_a_service_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    """It is named with its line and, where one is near, what may have been meant."""
    with pytest.raises(ConfigError) as refused:
        source_of(tmp_path, "endpoints:\n  audio: opnai\n  embeddings: {service: other}\n", "openai").load()
    first, second = sorted(refused.value.problems, key=lambda problem: problem.line)
    assert (first.line, first.code, second.line, second.code) == (6, "T702", 7, "T702")
    assert "no service 'opnai'" in first.message and "openai" in first.message


def test_services_that_are_there_are_taken(tmp_path: Path) -> None:
    text = "endpoints: {audio: openai, completions: vllm, embeddings: {service: openai, model: m, ttl: 1h}}\n"
    policy = source_of(tmp_path, text, "openai", "vllm").load().default
    assert [name for _, name in policy.endpoints.services()] == ["openai", "vllm", "openai"]
    assert (policy.endpoints.embeddings.model, policy.endpoints.embeddings.ttl) == ("m", 3600)
    assert policy.endpoints.images is None


def test_a_policy_that_names_none_keeps_its_version(tmp_path: Path) -> None:
    """That of a policy from before there were endpoints; one that names a service has another."""
    versions = []
    for text in ("", "endpoints: {}\n", "endpoints: {embeddings: {ttl: 24h}}\n", "endpoints: {audio: a}\n"):
        (tmp_path / "chat.yaml").write_text(PLAIN + text)
        versions.append(read_policy(tmp_path / "chat.yaml", (DeployedTier("local"),))[0])
    assert versions[0].version == versions[1].version == versions[2].version != versions[3].version
    assert len({policy.answers_version for policy in versions}) == 1, "chats' stored answers stay"
