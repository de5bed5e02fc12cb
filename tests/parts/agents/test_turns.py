"""How hard earlier turns make a turn, what is remembered of them, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.encoders import load_embedder
from gateway.parts.agents.turns import DECAY, REACH, Recent, TurnMemory, keys_of, rated_in_conversation
from policies.loader import made_policy
from policies.model import Policy
from routing.difficulty.model import DifficultyModel, shipped_artefact
from routing.embedder import Embedder
from routing.features import Features, features_of

HARD = "Design a web page in HTML that shows a random joke, compare two layouts and justify your choice."
ABOUT_IT = "Write a fifth joke about a cat for the page."
ELSEWHERE = "What do pandas like to eat for breakfast?"


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return load_embedder("static", tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def model(embedder: Embedder) -> DifficultyModel:
    return DifficultyModel.load(shipped_artefact("static"), embedder)


@pytest.fixture(scope="module")
def policy() -> Policy:
    rules: dict[str, Any] = {"surface": "s", "slo": {"deadline": "9s"}, "tiers": ["a", "b"]}
    return made_policy({**rules, "route": {"start": {"a": "otherwise"}}}, Path("s.yaml"), {})


def asked(*texts: str) -> Features:
    return features_of({"messages": [{"role": "user", "content": text} for text in texts]})


def before(policy: Policy, model: DifficultyModel, embedder: Embedder, *texts: str) -> float | None:
    return rated_in_conversation(policy, model, embedder, asked(*texts))[1].before


def hard_of(model: DifficultyModel, embedder: Embedder) -> float:
    effort = model.assess(embedder.embed((HARD,))[0], asked(HARD)).effort
    assert effort is not None
    return effort


def test_a_hard_turn_decays_by_each_turn_that_says_enough(
    policy: Policy, model: DifficultyModel, embedder: Embedder
) -> None:
    """`yes` is no turn of its own; a turn from which the classifier abstains is as hard as its effort."""
    [found] = {before(policy, model, embedder, HARD, ABOUT_IT)}
    assert found == DECAY * hard_of(model, embedder) > 0.8
    rated = [before(policy, model, embedder, *texts) for texts in (
        [HARD], [HARD, ABOUT_IT], [HARD, "yes", "go on", ABOUT_IT], [HARD, ELSEWHERE, ABOUT_IT], [HARD, ELSEWHERE],
    )]  # fmt: skip
    assert rated == [None, found, found, pytest.approx(DECAY * found), 0.0]
    far = [HARD, *[f"{ELSEWHERE} ({n})" for n in range(REACH)], ABOUT_IT]
    assert (before(policy, model, embedder, *far) or 0.0) < DECAY**REACH


def test_a_turn_that_asks_for_work_is_about_a_hard_one_whatever_its_words(
    policy: Policy, model: DifficultyModel, embedder: Embedder
) -> None:
    """Follow-ups often share no word with what they are about; an easy question about something else asks for none."""
    found = DECAY * hard_of(model, embedder)
    assert before(policy, model, embedder, HARD, "Trim the second paragraph and weigh one more objection.") == found
    assert before(policy, model, embedder, HARD, ELSEWHERE) == 0.0


def test_what_is_read_once_is_not_read_again(policy: Policy, model: DifficultyModel, embedder: Embedder) -> None:
    """And what was not read, as where the encoder took too long, is not known; it is not taken for easy."""
    memory = TurnMemory()
    vector = embedder.embed((ABOUT_IT,))[0]
    assert memory.unread([HARD, "yes"]) == [HARD]
    assert memory.hardest(policy, model, vector, None, [HARD, "yes"]) is None
    memory.put(HARD, embedder.embed((HARD,))[0])
    assert memory.unread([HARD, "yes"]) == []
    assert memory.hardest(policy, model, vector, None, [HARD, "yes"]) == DECAY * hard_of(model, embedder)


def test_memory_is_bounded(embedder: Embedder) -> None:
    """The turns used last are kept, whatever their number and length."""
    memory, vector = TurnMemory(most=10), embedder.embed((HARD,))[0]
    for number in range(50):
        memory.put(f"{HARD} {number}", vector)
        memory.unread([HARD])
    assert len(memory.turns) == 10 and memory.unread([f"{HARD} 49"]) == [] and memory.unread([f"{HARD} 1"])
    recent: Recent[str] = Recent(2)
    recent.put(1, "a")
    recent.put(2, "b")
    assert recent.get(1) == "a"
    recent.put(3, "c")
    assert (recent.get(1), recent.get(2), recent.get(3)) == ("a", None, "c")


def test_the_key_of_a_turn_is_found_by_the_next_one() -> None:
    """In its own conversation alone, at any length; another first answer does not hide it."""
    for turns in (1, 2, 5, 6, 30):
        texts = [f"question {n}" for n in range(turns + 1)]
        this = keys_of("one", asked(*texts[:-1]))[1]
        assert keys_of("one", asked(*texts))[0] == this
        assert this not in (keys_of("other", asked(*texts))[0], keys_of("one", asked("hm", *texts))[0])


def test_long_texts_are_told_apart_by_their_samples() -> None:
    """The next turn finds a text of 3 MB; with another beginning, end, length or a longer part it is another."""
    long = "word " * 600_000
    this = keys_of("one", asked(long))[1]
    assert keys_of("one", asked(long, "and then?"))[0] == this
    changed = (
        f"x{long[1:]}",
        f"{long[:-1]}x",
        f"{long} ",
        long[: 1 << 20] + "sword" * 10_000 + long[(1 << 20) + 50_000 :],
    )
    assert this not in [keys_of("one", asked(text))[1] for text in changed]
