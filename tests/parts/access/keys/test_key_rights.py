"""The models that a key's list opens, as a rule over policies and tiers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.errors import Forbidden
from gateway.parts.access.keys.key_caller import KeyRights
from gateway.parts.access.keys.records import KeyRecord
from policies.loader import PolicySet, PolicySource
from policies.model import DeployedTier
from tests.support.gateway import CHAT, write_policies

LADDER = {"local": frozenset({"small"}), "hosted": frozenset({"large", "huge"})}
ALL = (("small",), ("huge", "large"))
CODE = CHAT.replace("surface: chat", "surface: code").replace("[chat, gpt-4o-mini]", "[code, 'gpt-*']")
TEXTS = {"chat": CHAT, "code": CODE}


@pytest.fixture
def policies(tmp_path: Path) -> PolicySet:
    write_policies(tmp_path, TEXTS)
    return PolicySource(tmp_path, (DeployedTier("local"), DeployedTier("hosted"))).load()


def key(*models: str, **more: str) -> KeyRecord:
    return KeyRecord("k_a", "0" * 64, "default", models=models, **more)  # type: ignore[arg-type]


def opened(
    policies: PolicySet, record: KeyRecord, surface: str, ladder: Mapping[str, frozenset[str]] = LADDER
) -> tuple[tuple[str, ...], ...]:
    """Return the models of each tier that are open, all of them for None."""
    found = KeyRights(record).open_models(policies.by_surface[surface], policies, ladder)
    by_tier = ladder if found is None else found.by_tier
    return tuple(tuple(sorted(by_tier[name])) for name in ladder)


@pytest.mark.parametrize(
    ("models", "chat", "code"),
    [
        ((), ALL, ALL),
        (("large",), ((), ("large",)), ((), ("large",))),
        (("small", "huge"), (("small",), ("huge",)), (("small",), ("huge",))),
        (("small", "large", "huge"), ALL, ALL),
        (("tier:hosted",), ((), ("huge", "large")), ((), ("huge", "large"))),
        (("chat",), ALL, ((), ())),
        (("claude-chat",), ALL, ((), ())),
        (("gpt-4o-mini",), ALL, ((), ())),
        (("gpt-5",), ((), ()), ALL),
        (("auto",), ALL, ((), ())),
        (("chat", "large"), ALL, ((), ("large",))),
        (("unheard-of",), ((), ()), ((), ())),
        (("-",), ((), ()), ((), ())),
        (("tier:unheard-of",), ((), ()), ((), ())),
    ],
)
def test_what_a_list_opens(
    policies: PolicySet, models: tuple[str, ...], chat: tuple[tuple[str, ...], ...], code: tuple[tuple[str, ...], ...]
) -> None:
    """Backends by their models, on each surface; all of a surface by its names, by wildcards too; else nothing."""
    assert opened(policies, key(*models), "chat") == chat
    assert opened(policies, key(*models), "code") == code


def test_a_name_that_is_a_model_and_an_alias_is_the_model(policies: PolicySet) -> None:
    """Where the surface's own ladder has that model; else the alias is what leads there."""
    ladder = {"local": frozenset({"small"}), "hosted": frozenset({"gpt-4o-mini"})}
    assert opened(policies, key("gpt-4o-mini"), "chat", ladder) == ((), ("gpt-4o-mini",))
    assert opened(policies, key("gpt-4o-mini"), "chat") == ALL


def test_names_that_stand_for_nothing_lead_to_the_keys_own_surface(policies: PolicySet) -> None:
    """As its requests with them do; a tier that is gone does not."""
    assert opened(policies, key("unheard-of", default_surface="code"), "code") == ALL
    assert opened(policies, key("unheard-of", default_surface="code"), "chat") == ((), ())
    assert opened(policies, key("tier:gone", default_surface="code"), "code") == ((), ())
    assert opened(policies, key("-", default_surface="code"), "code") == ((), ())


@pytest.mark.parametrize(
    ("models", "asked", "answers", "is_open"),
    [
        (("embed",), "embed", "embed", True),
        (("embed",), "chat", "embed", True),
        (("short",), "short", "embed", True),
        (("chat",), "chat", "embed", True),
        (("chat",), "auto", "embed", True),
        (("chat",), "embed", "embed", False),
        (("code",), "chat", "embed", False),
        (("large",), "chat", "embed", False),
        (("large",), "embed-large", "embed-large", False),
    ],
)
def test_the_model_of_a_service(
    policies: PolicySet, models: tuple[str, ...], asked: str, answers: str, *, is_open: bool
) -> None:
    """Open by its own name, by the config's name for it, and by the surface that is listed and asked for."""
    chat = policies.by_surface["chat"]
    if is_open:
        KeyRights(key(*models)).check_model(chat, policies, LADDER, asked=asked, answers=answers)
    else:
        with pytest.raises(Forbidden):
            KeyRights(key(*models)).check_model(chat, policies, LADDER, asked=asked, answers=answers)


def test_fields_that_ask_for_further_models_are_refused() -> None:
    """They would answer in place of the one that is open."""
    KeyRights(key("large")).check_fields({"model": "large", "models": []})
    for name in ("models", "fallbacks"):
        with pytest.raises(Forbidden) as refused:
            KeyRights(key("large")).check_fields({"model": "large", name: ["huge"]})
        assert refused.value.param == name
