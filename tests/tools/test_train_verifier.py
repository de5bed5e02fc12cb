"""`python -m tools.train_verifier`: an artefact from labelled pairs that can be loaded, and is not judged by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from cache.semantic.verifier import Verifier
from tests.support.extras import needs
from tools import train_verifier as training

pytestmark = needs("sklearn", "the train extra is not installed")

WAYS = ("How do I {} {}?", "What is the best way to {} {}?", "Please explain how to {} {}.", "How can you {} {}?")
DOING = ("clean", "repair", "paint", "wash", "store", "choose", "sell", "borrow")
THINGS = ("a wool carpet", "an old bicycle", "the garden fence", "a leather sofa", "my winter coat", "a copper pan")


def pairs(dataset: str, doing: tuple[str, ...]) -> Iterator[str]:
    """Each question said otherwise, and beside another thing, or another thing to do."""
    for number, (do, thing) in enumerate(product(doing, THINGS)):
        asked = WAYS[0].format(do, thing)
        another = THINGS[(number + 1) % len(THINGS)]
        for way in WAYS[1:]:
            yield labelled(dataset, asked, way.format(do, thing), True)
            yield labelled(dataset, asked, way.format(do, another), False)


def labelled(dataset: str, a: str, b: str, same: bool) -> str:
    return json.dumps({"a": a, "b": b, "same_answer": same, "dataset": dataset, "group": "ways"})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """What to fit on, and what to check by."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "own.jsonl").write_text("\n".join(pairs("own", DOING[:6])))
    (folder / "others.jsonl").write_text("\n".join(pairs("others", DOING[6:])))
    return folder / "own.jsonl", folder / "others.jsonl"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of `python -m tools.train_verifier`."""
    code = training.main([*map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.long
def test_an_artefact_is_fitted_and_judged_on_what_it_did_not_see(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the strict threshold at most 2% of the pairs that differ are served; the sheet says what was seen."""
    monkeypatch.setattr(training, "_ROUNDS", 150)  # so few pairs need no more trees
    own, others = files
    flags = ("--data", own, "--check", others, "--json")
    code, out, _ = run(capsys, *flags, "--out", tmp_path / "one")
    report = json.loads(out)
    assert code == 0
    assert set(report["left_out"]) == {"own", "rules"}
    assert report["checked"]["others"]["wrong"] <= 0.02
    verifier = Verifier.load(tmp_path / "one")
    assert (verifier.version, verifier.strict) == (report["version"], report["strict"])
    same, other = (WAYS[1].format("wash", thing) for thing in ("a wool carpet", "a copper pan"))
    asked = WAYS[0].format("wash", "a wool carpet")
    assert verifier.score(asked, same, 0.9).score > verifier.score(asked, other, 0.9).score
    sheet = json.loads((tmp_path / "one" / "verifier.json").read_text())
    assert sheet["checked_by"] == [{"file": "others.jsonl"}]
    assert "--check others.jsonl" in sheet["command"]


def test_a_data_set_is_fitted_on_or_checked_by(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What checks must not have been seen."""
    code, _, said = run(capsys, "--data", files[0], "--check", files[0], "--out", tmp_path / "out")
    assert code != 0
    assert "own: given by --data and by --check" in said
    assert not (tmp_path / "out").exists()


def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File, line, and what a row is."""
    (tmp_path / "bad.jsonl").write_text(labelled("own", "a", "b", True) + '\n{"a": "x"}\n')
    code, _, said = run(capsys, "--data", tmp_path / "bad.jsonl", "--out", tmp_path / "out")
    assert code != 0
    assert "bad.jsonl:2" in said
    assert "same_answer" in said
