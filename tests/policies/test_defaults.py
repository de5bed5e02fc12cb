"""What `_defaults.yaml` gives to the policies of its folder, and files that are no policies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from policies.errors import ConfigError
from policies.loader import PolicySource, made_policy, policy_files, read_policy
from policies.model import DeployedTier
from tests.policies.conftest import CHAT, Write

TIERS = (DeployedTier("local"), DeployedTier("hosted"))


def defaults(folder: Path, text: str) -> Path:
    file = folder / "_defaults.yaml"
    file.write_text(text)
    return file


def problems_of(folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as failed:
        PolicySource(folder, TIERS).load()
    return [str(problem).removeprefix(f"{folder}/") for problem in failed.value.problems]


def test_maps_are_merged_and_lists_and_rules_are_replaced(write: Write) -> None:
    """What the file says wins, key by key; the order of start rules is never mixed from two files."""
    file = write("chat", CHAT)
    defaults(
        file.parent,
        "slo: {ttft: {p50: 100ms, p95: 1s}, on_miss: fail}\ncache: {semantic: {ttl: 1h}, never: [stream]}\n"
        "route: {classifier: none, start: {hosted: stream}}\n",
    )
    policy, document = read_policy(file)
    assert (policy.slo.ttft.p50, policy.slo.ttft.p95, policy.slo.on_miss) == (0.1, 0.4, "fail")
    assert policy.cache.semantic is not None and policy.cache.semantic.ttl == 3600
    assert [rule.source for rule in policy.cache.never] == ["tools", "temperature > 0.3"]
    assert list(policy.route.start) == ["local", "hosted"] and policy.route.classifier == "none"
    assert policy.content["slo"]["on_miss"] == "fail"
    again = made_policy(policy.content, file, {})
    assert (again.version, again) == (policy.version, policy)
    by_hand = [
        ("p95: 400ms,", "p50: 100ms, p95: 400ms,"),
        ("30s}", "30s, on_miss: fail}"),
        ("route:\n", "route:\n  classifier: none\n"),
        ("24h},", "24h}, semantic: {ttl: 1h},"),
    ]
    written_out = write("out", CHAT, *by_hand)
    assert read_policy(written_out)[0].version == policy.version
    place = document.problem(("cache", "semantic", "ttl"), "")
    assert (place.file.name, place.line, place.column) == ("_defaults.yaml", 2, 25)
    assert document.problem(("cache", "exact", "ttl"), "").file == file


def test_null_takes_a_default_away(write: Write) -> None:
    """A surface without what the others have says so."""
    file = write("chat", CHAT, ("cache: {", "cache: {semantic: null, "))
    defaults(file.parent, "cache: {semantic: {ttl: 1h}}\n")
    assert read_policy(file)[0].cache.semantic is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("holdout: 2\n", "_defaults.yaml:1:10: holdout: input should be less than or equal to 1; write 2% [T105]"),
        ("slo: {on_mis: fail}\n", "_defaults.yaml:1:7: slo.on_mis: unknown key (did you mean 'on_miss'?) [T103]"),
        ("cache:\n  never: [sream]\n",
         "_defaults.yaml:2:11: cache.never[0]: 'sream' asks for 'sream' (did you mean 'stream'?); a rule here knows "
         "images, json, logprobs, n, seed, stream, temperature, tokens_in, tools, top_p, turns, volatile; "
         "write stream [T106]"),
        ("surface: chat\n", "_defaults.yaml:1:1: surface: is of one surface, and _defaults.yaml counts for all; "
         "write it in the surface's own file [T107]"),
        ("a: [\n", "_defaults.yaml:2:1: not YAML: did not find expected node content (while parsing a flow node that "
         "began on line 2) [T102]"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_defaults_is_told_once_at_its_line(write: Write, text: str, found: str) -> None:
    """Even where every policy says otherwise: a key that nobody knows is wrong there too."""
    write("a", CHAT, ("surface: chat", "surface: a"), ("[gpt-4o-mini]", "[]"))
    defaults(write().parent, text)
    assert problems_of(write().parent) == [found]


def test_a_changed_default_reloads_every_policy(write: Write) -> None:
    """Its time and size are part of what a folder looks like."""
    folder = write().parent
    source = PolicySource(folder, TIERS)
    before, look = source.load().default, source.snapshot()
    file = defaults(folder, "holdout: 5%\n")
    assert source.snapshot() != look
    assert (before.holdout, source.load().default.holdout) == (None, 0.05)
    file.write_text("holdout: 7%\n")
    os.utime(file, ns=(1, 1))
    assert source.load().default.holdout == 0.07
    file.unlink()
    assert source.load().default == before


def test_tests_of_policies_are_no_surfaces(write: Write) -> None:
    """Neither read nor looked at for changes."""
    folder = write().parent
    look = PolicySource(folder, TIERS).snapshot()
    for name in ("chat.test.yaml", "chat.test.yml", "_defaults.yaml"):
        (folder / name).write_text("holdout: 1%\n" if name[0] == "_" else "tests: nothing that a policy has\n")
    assert [file.name for file in policy_files(folder)] == ["chat.yaml"]
    assert PolicySource(folder, TIERS).snapshot().keys() == look.keys() | {"_defaults.yaml"}
    assert PolicySource(folder, TIERS).load().names == ("chat",)
