"""One word stands for another only where a list says so, or both are common and unlike."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from cache.semantic.decision import decide_by
from cache.semantic.verifier import Verifier, shipped_verifier
from gateway.parts.encoders.exchange import SHEET, are_listed, may_exchange, pair_digest
from gateway.parts.fit.datasets import read_pairs
from gateway.seams import read_other_languages
from tests.cache.samples import policy

PAIRS = Path(__file__).parents[3] / "tools" / "pairs" / "dev-exchanges.jsonl"


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("How do I buy a used car?", "How do I purchase a used car?"),
        ("How do I change the colour of text?", "How do I change the color of text?"),
        ("How do I repair a broken window?", "How do I repair broken windows?"),
        ("Who sang this song?", "Who has sung this song?"),
        ("How do I back up my photos?", "How do I back up my photographs?"),
        ("Is a return from abroad free?", "Is a returnfrom abroad free?"),
        ("Is it for people from 4 years on?", "Is it for people from four years on?"),
        ("How do I send an e-mail?", "How do I send an email?"),
        ("Where are shoes made?", "Where are boots made in winter, and shoes?"),
    ],
)
def test_words_that_mean_the_same_may_stand_for_each_other(stored: str, asked: str) -> None:
    """Synonyms, spellings, forms, short forms, slips and numbers, either way, and what differs in more."""
    assert may_exchange(stored, asked, "en")
    assert may_exchange(asked, stored, "en")


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("hydroxyzine", "hydralazine"),
        ("immigration", "emigration"),
        ("upload", "download"),
        ("include", "exclude"),
        ("ssh", "ssl"),
        ("SSH", "SSL"),
        ("GPU", "CPU"),
        ("sha1", "sha256"),
        ("adenine", "guanine"),
        ("pytest", "ptest"),
    ],
)
def test_look_alikes_and_words_that_nobody_lists_may_not(word: str, other: str) -> None:
    """Also opposites and kinds of one thing."""
    assert not are_listed(word, other)
    assert not are_listed(other, word)
    assert not may_exchange(f"What does {word} do?", f"What does {other} do?", "en")


def test_the_pairs_written_for_it_are_told_apart() -> None:
    """At most a few true exchanges are refused, and of look-alikes nearly all."""
    counts = Counter((pair.same_answer, may_exchange(str(pair.a), str(pair.b), "en")) for pair in read_pairs(PAIRS))
    assert counts[True, False] <= 0.05 * (counts[True, True] + counts[True, False])
    assert counts[False, False] >= 0.9 * (counts[False, True] + counts[False, False])


@pytest.mark.parametrize(
    ("stored", "asked", "code", "may"),
    [
        ("Welchen Port benutzt ssh?", "Welchen Port benutzt ssl?", "de", False),
        ("A cosa serve la CPU?", "A cosa serve la GPU?", "it", False),
        ("¿Cuál es la dosis de clonidina?", "¿Cuál es la dosis de clonazepam?", "es", False),
        ("Wie repariere ich das Fenster?", "Wie repariere ich die Fensters?", "de", True),
        ("WIE REPARIERE ICH EIN FENSTER?", "WIE REPARIERE ICH EINE SCHEIBE?", "de", True),
        ("Jak naprawić rower?", "Jak zreperować rower?", "pl", True),
        ("Какой порт использует ssh?", "Какой порт использует ssl?", "ru", True),
    ],
)
def test_other_languages_refuse_look_alikes_and_short_forms(stored: str, asked: str, code: str, may: bool) -> None:
    """Where their words are known; forms of a word, usual words and texts in capitals are left to the cross-encoder."""
    assert may_exchange(stored, asked, code) is may
    assert may_exchange(asked, stored, code) is may


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("How long does hydroxyzine stay in the body?", "How long does hydralazine stay in the body?"),
        ("Wie lange bleibt Cetirizin im Körper?", "Wie lange bleibt Sertralin im Körper?"),
        ("Which port does mysql use?", "Which port does mssql use?"),
    ],
)
def test_a_decision_before_a_cross_encoder_names_the_guard(stored: str, asked: str) -> None:
    """In English and in German; a name that no dictionary has is no slip of another."""
    read_other_languages()
    semantic = policy(semantic={"ttl": "1h", "min_similarity": 0.5}).cache.semantic
    assert semantic is not None
    decide = decide_by(semantic, Verifier.load(shipped_verifier("static")), screening=True, languages=("en", "de"))
    assert decide(stored, asked, 0.95).refused == "guard: exchange"


def test_the_table_is_that_of_its_sheet() -> None:
    """The sheet states the hash of the table that ships, its licence is beside it, and order is nothing to a pair."""
    facts = json.loads(SHEET.read_bytes())
    assert hashlib.sha256(SHEET.with_suffix(".safetensors").read_bytes()).hexdigest() == facts["sha256"]
    assert "Princeton University" in SHEET.with_suffix(".LICENSE").read_text("utf-8")
    assert pair_digest("buy", "purchase") == pair_digest("purchase", "buy")
