"""The comparison of two builds: a tree of each, and no gain that is smaller than what the rounds differ by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import against, rig
from tests.bench.builds import NoBuild, base_commit, packed
from tests.support.gateway import ROOT


def _text(figure: str, base: list[float], new: list[float], peer: list[float] | None = None) -> str:
    samples = {figure: {"base": base, "new": new}} | ({"peer_cpu_us": {"TensorZero": peer}} if peer else {})
    return against.as_text(against.lines_of(samples), samples, ["a note"])


def test_a_gain_counts_when_it_is_larger_than_the_spread() -> None:
    """The ratio is the median of the rounds' own, and a target is met by a difference alone."""
    base = [100.0, 200.0, 400.0, 100.0, 100.0, 100.0, 100.0]
    halved = _text("bare_cpu_us", base, [value / 2 for value in base])
    assert "0.50     0.50-0.50     0.7   0.5" in halved and "aim met" in halved and "no difference" not in halved
    noisy = _text("bare_cpu_us", base, [50.0, 180.0, 100.0, 95.0, 60.0, 30.0, 140.0])
    assert "no difference measured" in noisy and "met" not in noisy
    assert "OVER" in _text("bare_cpu_us", base, base)


def test_few_rounds_tell_nothing() -> None:
    """Two equal rounds have no spread, and prove nothing by it."""
    assert "too few rounds to tell" in _text("bare_cpu_us", [100.0, 100.0], [50.0, 50.0])


def test_a_round_without_a_ratio_is_left_out() -> None:
    """A latency that is added may come out as nothing."""
    base, new = [1.0] * 5 + [-0.1], [0.3] * 6
    assert "     0.30     0.30-0.30" in _text("full_p99_c1_ms", base, new)
    assert "nan" in _text("full_p99_c1_ms", [0.0], [0.0])


def test_a_peer_of_the_same_round_stands_beside() -> None:
    """A row whose ratio to the peer is over its target is over, whatever that to the base is."""
    line = _text("full_cpu_us", [1000.0] * 5, [400.0] * 5, [80.0] * 5).splitlines()[1]
    assert line.split()[-2:] == ["5", "OVER"]


def test_json_has_each_round() -> None:
    """Whoever reads it can judge by a rule of their own."""
    samples = {"bare_cpu_us": {"base": [2.0, 4.0], "new": [1.0, 2.0]}}
    read = json.loads(against.as_json(against.lines_of(samples), samples, [], {}))
    assert read["rows"][0]["ratio"] == 0.5 and read["samples"] == samples


def test_trees_are_run_by_this_interpreter(tmp_path: Path) -> None:
    """The working tree's copy runs its own packages; an unknown commit is one clear line."""
    build = packed(tmp_path, "new", None)
    assert (build.tree / "tests" / "bench" / "cost-base").read_text().startswith(base_commit())
    assert not (build.tree / ".venv").exists()
    run = build.run(["-c", "import gateway.errors as found; print(found.__file__)"])
    assert run.stdout.startswith(str(build.tree)) and not run.stdout.startswith(str(ROOT / "gateway"))
    with pytest.raises(NoBuild, match="rev-parse"):
        packed(tmp_path, "base", "no-such-commit")


def test_missing_tools_and_commits_end_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is a line on standard error."""
    assert against.main(["no-such-commit", "--only", "bare"]) == 2
    assert "no-such-commit" in capsys.readouterr().err
    monkeypatch.setattr(rig, "tool", lambda command: None)
    assert against.main([]) == 2
    assert "apt-get install" in capsys.readouterr().err
