"""Who answers what is not a chat: the services that a policy names, and what naming none changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.parts.services.policy import endpoints_in
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
    return PolicySource(folder, (DeployedTier("local"),), named={"services": services})


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
    assert [name for _, name in endpoints_in(policy).services()] == ["openai", "vllm", "openai"]
    assert (endpoints_in(policy).embeddings.model, endpoints_in(policy).embeddings.ttl) == ("m", 3600)
    assert endpoints_in(policy).images is None


def test_a_policy_that_names_none_keeps_its_version(tmp_path: Path) -> None:
    """That of a policy from before there were endpoints; one that names a service has another."""
    versions = []
    for text in ("", "endpoints: {}\n", "endpoints: {embeddings: {ttl: 24h}}\n", "endpoints: {audio: a}\n"):
        (tmp_path / "chat.yaml").write_text(PLAIN + text)
        versions.append(read_policy(tmp_path / "chat.yaml", (DeployedTier("local"),))[0])
    assert versions[0].version == versions[1].version == versions[2].version != versions[3].version
    assert len({policy.answers_version for policy in versions}) == 1, "chats' stored answers stay"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/messages", "T107"),
        ("/v1/messages/count_tokens", "T107"),
        ("/v1/chat", "T107"),
        ("/v1/responses/compact", "T107"),
        ("/v1/audio/speech", "T107"),
        ("rerank", "T105"),
        ("/v2/rerank", "T105"),
        ("/v1/", "T105"),
        ("/v1/rerank/", "T105"),
        ("/v1/a/../b", "T105"),
        ("/v1/" + "a" * 130, "T105"),
    ],
)
def test_a_path_that_cannot_be_passed_on_is_a_mistake(tmp_path: Path, path: str, code: str) -> None:
    """At its key's line; a path that is served in any case can be taken out by a script."""
    with pytest.raises(ConfigError) as refused:
        source_of(tmp_path, f"endpoints:\n  other:\n    {path}: a\n    /v1/rerank: a\n", "a").load()
    (problem,) = refused.value.problems
    assert (problem.line, problem.code) == (7, code)
    assert [edit.path for edit in problem.edits] == ([("endpoints", "other", path)] if code == "T107" else [])


def test_a_further_path_stands_for_those_below_it(tmp_path: Path) -> None:
    text = "endpoints: {other: {/v1/a: x, /v1/a/b: y, /v1/messages/batches: x}}\n"
    policies = source_of(tmp_path, text, "x", "y").load()
    listed = endpoints_in(policies.default)
    assert [name for _, name in listed.services()] == ["x", "y", "x"]
    assert [listed.other_path(path) for path in ("/v1/a", "/v1/a/c/d", "/v1/a/b/c", "/v1/ab", "/v1", "/", "")] == [
        "/v1/a", "/v1/a", "/v1/a/b", None, None, None, None
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="no service 'z'"):
        source_of(tmp_path, "endpoints: {other: {/v1/a: z}}\n", "x").load()
