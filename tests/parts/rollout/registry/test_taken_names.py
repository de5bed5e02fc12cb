"""Which names a policy would take from surfaces that its author may not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.parts.rollout.registry.taken_names import taken_names
from policies.loader import read_policy
from policies.model import DeployedTier, Policy
from tests.support.gateway import CHAT

TIERS = (DeployedTier("local"), DeployedTier("hosted"))


def policy(folder: Path, surface: str, models: str) -> Policy:
    text = CHAT.replace("surface: chat", f"surface: {surface}").replace("[chat, gpt-4o-mini]", models)
    file = folder / f"{surface}.yaml"
    file.write_text(text)
    return read_policy(file, TIERS)[0]


@pytest.mark.parametrize(
    ("models", "taken"),
    [
        ("[gpt-4o]", {"gpt-4o"}),
        ("['gpt-4*']", {"gpt-4*"}),
        ("['*-4o']", set()),
        ("['gp*4o']", {"gp*4o"}),
        ("['*']", set()),
        ("[o3, 'claude-*']", set()),
    ],
)
def test_what_is_more_specific_takes_names(tmp_path: Path, models: str, taken: set[str]) -> None:
    chat, before = policy(tmp_path, "chat", "['gpt-*', own]"), policy(tmp_path, "search", "[]")
    after = policy(tmp_path, "search", models)
    assert taken_names(after, before, [chat, before], lambda _: False) == dict.fromkeys(taken, "chat")
    assert not taken_names(after, before, [chat, before], lambda surface: surface == "chat")
    assert not taken_names(after, after, [chat, before], lambda _: False), "it has them already"


def test_a_new_surface_takes_its_own_name(tmp_path: Path) -> None:
    chat, new = policy(tmp_path, "chat", "['gpt-*']"), policy(tmp_path, "gpt-search", "[]")
    assert taken_names(new, None, [chat], lambda _: False) == {"gpt-search": "chat"}
