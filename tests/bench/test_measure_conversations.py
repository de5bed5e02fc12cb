"""`python -m tests.bench.measure_conversations`: follow-ups of a hard turn do not start small, and what it refuses."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.bench.measure_conversations import conversations_of, main

PARTS = Path(__file__).with_name("conversations") / "conversations.toml"


def test_follow_ups_of_hard_turns_do_not_start_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 126 conversations in seven languages, by the shipped rules of `chat` and `batch`.

    Easy topics of their own mostly do, but where `batch` looks at the conversation: in one language vectors are alike.
    """
    assert main(["--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["conversations"] == 126
    for surface in ("chat", "batch"):
        alone, figures = printed[surface]["last message alone"], printed[surface]["its conversation"]
        assert figures["follow_ups_small"]["value"] <= min(0.05, alone["follow_ups_small"]["value"])
        assert figures["follow_ups_small"]["n"] >= 40
        assert printed[surface]["what it hangs on"]["topics_big"]["value"] <= 0.1
    assert printed["batch"]["its conversation"]["topics_big"]["value"] <= 0.8


def test_the_conversations_are_half_hard_first_turns() -> None:
    """Each with three follow-ups; the others change their topic or are easy throughout."""
    made = list(conversations_of(tomllib.loads(PARTS.read_text("utf-8"))))
    assert [sum(turns[-1].role == role for turns in made) for role in ("follow_up", "topic", "chat")] == [63, 35, 28]
    assert {len(turns) for turns in made if turns[-1].role == "follow_up"} == {4}


def test_recorded_conversations_end_with_a_new_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a file of JSON lines: what follows a hard first turn starts high, something else not."""
    file = tmp_path / "recorded.jsonl"
    about = [
        "Design a web page in HTML that shows a random joke, compare two layouts and justify your choice.",
        "Write a joke about a cat for the page.",
    ]
    other = ["What do pandas like to eat for breakfast?", "And what do lions eat?"]
    rows = [{"category": "c", "conversation": [{"user": text} for text in asked]} for asked in (about, other)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert (
        main(["--json", "--conversations", str(file), "--policy", str(PARTS.parents[3] / "policies/batch.yaml")]) == 0
    )
    figures = json.loads(capsys.readouterr().out)["batch"]
    assert figures["what it hangs on"]["follow_ups_small"]["value"] == 1
    assert (
        figures["its conversation"]["follow_ups_small"]["value"]
        == figures["its conversation"]["topics_big"]["value"]
        == 0
    )


@pytest.mark.parametrize(
    "text", ["[en]\nhard = ['a']\n", "not toml", "[en]\nhard = ['a']\nfollow_ups = []\ntopics = []\n"]
)
def test_a_file_without_parts_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the name of the file."""
    file = tmp_path / "parts.toml"
    file.write_text(text)
    assert main(["--conversations", str(file)]) == 2
    assert "parts.toml is not a file of conversations" in capsys.readouterr().err
