from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from cache.semantic.verifier import Verifier, VerifierError, shipped_verifier
from cache.text.normalized_question import gist
from routing.embedder import StaticEmbedder

EMBEDDINGS = ("static", "minilm")
COSINE = 0.93


@pytest.fixture(scope="module", params=EMBEDDINGS)
def verifier(request: pytest.FixtureRequest) -> Verifier:
    """What ships for each encoder."""
    return Verifier.load(shipped_verifier(request.param))


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("What is the capital city of Italy?", "what's the capital city of italy"),
        ("How do I reset my password?", "What is the best way to reset my password?"),
        ("How can I learn French?", "In order to learn French, what should I do?"),
        ("How do I delete my account?", "How can you delete your account?"),
        ("Can you travel with a cat?", "Do you think I can travel with a cat?"),
        ("How do I enable logging?", "How can I turn on logging?"),
        ("Is that dog lying on the sofa?", "Is that dog actually lying on the sofa?"),
        ("Wie kann ich das Passwort ändern?", "wie kann ich das passwort ändern"),
        ("Is Amy related to Paul?", "Is Paul related to Amy?"),
        ("Please confirm that the damaged item ships.", "Please confirm that the item damaged ships."),
        ("How do I become a brave person?", "How can I become a courageous person?"),
    ],
)
def test_a_rephrasing_is_served_at_the_strict_threshold(verifier: Verifier, stored: str, asked: str) -> None:
    """Other ways to ask for a way, contractions, synonyms, fillers and `you` for `I` change no answer."""
    for left, right in ((stored, asked), (asked, stored)):
        verdict = verifier.score(left, right, COSINE)
        assert not verdict.refused
        assert verdict.score >= verifier.strict


@pytest.mark.parametrize(
    ("stored", "asked", "refused"),
    [
        ("Can I take 2 pills?", "Can I take 3 pills?", "numbers"),
        ("What does $5 buy?", "What does €5 buy?", "numbers"),
        ("Is it safe to eat raw eggs?", "Is it not safe to eat raw eggs?", "negation"),
        ("Approve the loan application.", "Reject the loan application.", "negation"),
        ("Reduce the credit limit.", "Adjust the credit limit upwards.", "negation"),
        ("Keep the staging environment.", "Drop the staging environment.", "negation"),
        ("Recommend the investment.", "Recommend against the investment.", "negation"),
        ("How do I turn on logging?", "How do I turn off logging?", "negation"),
        ("Is this visa valid?", "Is this visa invalid?", "negation"),
        ("How do I become more patient?", "How do I become less patient?", "negation"),
        ("What is the capital of France?", "What is the capital of Spain?", "entities"),
        ("what is the capital of france", "what is the capital of spain", "entities"),
        ("Can I feed my dog bananas?", "Can I feed my cat bananas?", "entities"),
        ("Is Amy Jones an editor?", "Is Amy Johnson an editor?", "entities"),
        ("How do I sort a list in Python?", "How do I sort a list in Java?", "entities"),
        ("Should I stretch before a run?", "Should I stretch after a run?", "dates"),
        ("Is John Watson a producer?", "Did John Watson use to be a producer?", "dates"),
        ("Is it open on Monday?", "Is it open on Tuesday?", "dates"),
        ("Flights from Rome to Paris", "Flights from Paris to Rome", "order"),
        ("Is Sarah paying Kelly?", "Is Kelly paying Sarah?", "order"),
        ("Does Lisa know Kevin?", "Is Lisa known by Kevin?", "order"),
        ("Would he reject her alone?", "Would she reject him alone?", "order"),
        ("Can I sue you?", "Can you sue me?", "order"),
        ("What is my name?", "What is your name?", "order"),
        ("Who wrote this book?", "When was this book written?", "dates"),
        ("Why is the sky blue?", "Is the sky blue?", "asked"),
        ("Can children swim?", "Should children swim?", "asked"),
    ],
)
def test_what_changes_the_answer_is_refused_whatever_the_score(
    verifier: Verifier, stored: str, asked: str, refused: str
) -> None:
    """Each class of small edits has its veto, whichever of the two was kept."""
    assert verifier.score(stored, asked, 0.999).refused == refused
    assert verifier.score(asked, stored, 0.999).refused == refused


@pytest.mark.parametrize(
    ("stored", "asked", "refused"),
    [
        ("Can I take 2 pills?", "Can I take 3 pills?", "numbers"),
        ("Is it safe to eat raw eggs?", "Is it not safe to eat raw eggs?", "negation"),
        ("How do I turn on logging?", "How do I turn off logging?", "negation"),
        ("How do I become more patient?", "How do I become less patient?", "negation"),
        ("What is the capital of France?", "What is the capital of Spain?", "entities"),
        ("Is Amy Jones an editor?", "Is Amy Johnson an editor?", "entities"),
        ("What does 'havoc' mean?", "What does 'ravage' mean?", "entities"),
        ("Should I stretch before a run?", "Should I stretch after a run?", "dates"),
        ("Is it open on Monday?", "Is it open on Tuesday?", "dates"),
        ("Flights from Rome to Paris", "Flights from Paris to Rome", "order"),
        ("Is Sarah paying Kelly?", "Is Kelly paying Sarah?", "order"),
        ("Can I sue you?", "Can you sue me?", "order"),
        ("Who wrote this book?", "When was this book written?", "asked"),
        ("Can I freeze cooked rice?", "How do I freeze cooked rice?", "asked"),
        ("Can children swim?", "Should children swim?", "asked"),
        ("How do I become more patient?", "How do I become less impatient?", ""),
        ("In which season do tickets to Japan cost less?", "What is the cheaper time of year to fly to Japan?", ""),
        ("What does 'havoc' mean?", 'Define the word "havoc".', ""),
        ("What is the capital of the UAE?", "What is the capital city of the United Arab Emirates?", ""),
        ("Who painted the Sistine Chapel?", "Who was it that painted the Sistine Chapel?", ""),
        ("What is the notice period during probation?", "probation notice period", ""),
        ("Why did the empire collapse?", "What brought about the end of the empire?", ""),
        ("My card is gone, what should I do?", "My card is gone. What do I have to do?", ""),
        ("How do I undo a commit without losing changes?", "How do I undo a commit and keep my changes?", ""),
        ("How do I prune tomatoes?", "Hi, I'm new here, so could you tell me how to prune tomatoes? Thanks!", ""),
    ],
)
def test_before_a_cross_encoder_only_a_conflict_is_refused(
    verifier: Verifier, stored: str, asked: str, refused: str
) -> None:
    """It reads what is left: a difference that may be another wording, or belong to the story, is left to it."""
    assert verifier.score(stored, asked, 0.9, screening=True).refused == refused
    assert verifier.score(asked, stored, 0.9, screening=True).refused == refused


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("What is a lesson?", "What is a lesson plan?"),
        ("How do I cook rice?", "How do I cook lentils?"),
        ("How do I clean a window?", "How do I clean a carpet?"),
        ("Is Emma an economist?", "Is Emma becoming an economist?"),
        ("Is Ryan a producer?", "Is Ryan an elite producer?"),
        ("What is the tax on income?", "What is the tax on property?"),
        ("Is he an agent or an auditor?", "Is he simultaneously an agent and an auditor?"),
    ],
)
def test_another_question_is_not_served_at_the_strict_threshold(verifier: Verifier, stored: str, asked: str) -> None:
    """A word more, less or other that means something is another question, though no veto speaks."""
    for left, right in ((stored, asked), (asked, stored)):
        verdict = verifier.score(left, right, COSINE)
        assert verdict.refused or verdict.score < verifier.strict


def test_the_same_text_is_sure_and_what_cannot_be_read_is_refused(verifier: Verifier) -> None:
    """Equal texts need no reading; one without words, or too long to read, fails closed."""
    assert verifier.score("?", "?", 1.0).score == 1.0
    assert verifier.score("?", "!", 1.0).refused == "wording"
    assert verifier.score("word " * 1000, "word " * 1001, 1.0).refused == "length"


def test_a_policy_may_switch_a_veto_off(verifier: Verifier) -> None:
    """A guard that is not asked for does not refuse; then the head decides."""
    assert verifier.score("Can I take 2 pills?", "Can I take 3 pills?", COSINE, ("negation",)).refused == ""


def test_a_nearer_vector_never_lowers_the_score(verifier: Verifier) -> None:
    """The head cannot learn that likeness speaks against a pair."""
    pair = "How do I clean a wool carpet?", "What is a good way to wash a carpet of wool?"
    scores = [verifier.score(*pair, cosine / 20).score for cosine in range(8, 21)]
    assert scores == sorted(scores)


def test_an_artefact_that_was_changed_is_not_loaded(tmp_path: Path) -> None:
    """The data sheet carries the hash of the tensors; files that do not belong together say so."""
    folder = tmp_path / "static"
    shutil.copytree(shipped_verifier("static"), folder)
    shutil.copy(shipped_verifier("static").parent / "words.safetensors", tmp_path)
    assert Verifier.load(folder).version == Verifier.load(shipped_verifier("static")).version
    sheet = json.loads((folder / "verifier.json").read_text())
    (folder / "verifier.json").write_text(json.dumps({**sheet, "sha256": "0" * 64}))
    with pytest.raises(VerifierError, match="do not match"):
        Verifier.load(folder)
    with pytest.raises(VerifierError, match="train_verifier"):
        Verifier.load(tmp_path / "absent")


def test_letters_that_a_pattern_takes_for_others_are_left_as_they_are() -> None:
    """`re` finds the phrase `used to be` in a text with a long s, and knows no other words for that."""
    assert gist("Who uſed to be the king?").words
    assert gist("Turn on the lıght").words


def test_the_table_of_words_is_what_its_sheet_says() -> None:
    """The words of the encoder that ships, commonest first, each with the encoder's own vector."""
    folder = shipped_verifier("static").parent
    sheet, data = json.loads((folder / "words.json").read_text()), (folder / "words.safetensors").read_bytes()
    assert sheet["sha256"] == hashlib.sha256(data).hexdigest() and sheet["bytes"] == len(data)
    tensors, encoder = load(data), StaticEmbedder.load()
    words, vectors = tensors["words"].tobytes().decode().split("\n"), tensors["vectors"]
    assert vectors.shape == (sheet["words"], sheet["dimension"]) and len(words) == sheet["words"]
    own = encoder.vocabulary()
    assert words[: len(own)] == list(own)
    made = encoder.embed(words[::101])
    assert np.abs(made / np.abs(made).max(axis=1, keepdims=True) * 127 - vectors[::101]).max() < 1
