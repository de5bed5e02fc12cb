"""Completion of policies: what may stand at a place of a text that may be no YAML yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.parts.console.completion import PolicyCompleter, spot_at
from policies.loader import SHIPPED, PolicySource
from policies.model import DeployedTier

SOURCE = PolicySource(
    Path("policies"),
    (DeployedTier("local"), DeployedTier("hosted")),
    backends={"judge-9b": "judge"},
    named={"services": ("speech",)},
)


def labels(text: str) -> list[str]:
    """Complete a text at its `|`."""
    at = text.index("|")
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    found = PolicyCompleter(SOURCE).complete(text.replace("|", "", 1), line, column)
    return [option["label"] for option in found["options"]]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("slo:\n  |\n  deadline: 60s\n", ["ttft", "tpot", "gap", "total", "stages", "on_miss"]),
        ("slo:\n  on_miss: |", ["serve_best", "fail"]),
        ("slo:\n  ttft: {p50: 1s, |}", ["p95", "p99"]),
        ("tiers: [local, |]", ["local", "hosted"]),
        ("tiers:\n  - |", ["local", "hosted"]),
        ("tiers: [local, hosted]\nroute:\n  start:\n    local: stream\n    |", ["hosted"]),
        ("route:\n  start:\n    local: kind == |", ["choices", "maths", "chat", "code", "tools"]),
        ("route:\n  start:\n    local: |", ["p_adequate", "difficulty", "in_domain", "kind"]),
        ("cache:\n  semantic: {ttl: 6h, audit_judge: {backend: |}}", ["judge-9b"]),
        ("cache:\n  semantic:\n    ttl: 6h\n    verify: |", ["default", "fast", "none"]),
        ("cache:\n  never: [tools, |]", ["tools", "images", "temperature"]),
        ("escalate:\n  when:\n    finish: [|", ["length", "content_filter"]),
        ("escalate:\n  when:\n    repetition: |", ["true", "false"]),
        ("endpoints:\n  audio: |", ["speech"]),
        ("# slo|", []),
        ("nothing_known:\n  |", []),
    ],
)
def test_what_may_stand_there_is_offered(text: str, first: list[str]) -> None:
    found = labels(text)
    assert found[: len(first)] == first and bool(found) == bool(first)


def test_keys_come_with_their_meaning_and_what_to_write_behind_them() -> None:
    found = PolicyCompleter(SOURCE).complete("surface: x\nca", 2, 3)
    [cache] = [option for option in found["options"] if option["label"] == "cache"]
    assert found["column"] == 1 and cache["apply"] == "cache:\n  " and cache["detail"] == "section"
    slo = PolicyCompleter(SOURCE).complete("slo:\n  dead", 2, 7)
    [deadline] = [option for option in slo["options"] if option["label"] == "deadline"]
    assert slo["column"] == 3 and deadline["apply"] == "deadline: " and deadline["detail"] == "required, duration"
    assert "request" in deadline["info"]


def test_every_place_of_the_shipped_policies_can_be_completed() -> None:
    """And at the start of each key, that key is what may stand there."""
    completer = PolicyCompleter(SOURCE)
    for file in SHIPPED.glob("[a-z]*.yaml"):
        if ".test." in file.name:
            continue
        text = file.read_text("utf-8")
        for number, line in enumerate(text.split("\n"), 1):
            for column in range(1, len(line) + 2, 7):
                completer.complete(text, number, column)
            stripped = line.strip()
            if stripped and not stripped.startswith(("#", "-")) and line.endswith(":"):
                start = len(line) - len(line.lstrip()) + 1
                offered = [option["label"] for option in completer.complete(text, number, start)["options"]]
                assert stripped[:-1] in offered, f"{file.name}:{number}"


def test_places_beyond_the_text_are_none_of_it() -> None:
    spot = spot_at("surface: chat", 9, 4)
    assert spot is not None and spot.path == () and spot.is_key
