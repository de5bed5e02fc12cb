"""Long texts are compared by the sentences in which they differ, where every sentence has a counterpart."""

from __future__ import annotations

import pytest

from cache.semantic.decision import wording
from gateway.parts.encoders.turns import differing_sentences

STORY = (
    "Three weeks ago I ordered a table from a shop on the internet and paid in advance. The confirmation said that it "
    "would be here within ten days. I have called several times, but nobody answers. How can I get my money back?"
)


def test_only_the_sentences_that_differ_are_returned_each_with_the_one_in_its_place() -> None:
    """Greetings and thanks are no sentences; case and punctuation make no other one."""
    asked = STORY.replace("How can I get my money back?", "What can I do to get a refund?")
    asked = f"Hello everybody! {asked.replace('times, but', 'times but')} Thanks a lot in advance."
    assert differing_sentences(STORY, asked, wording) == (
        ("How can I get my money back?", "What can I do to get a refund?"),
    )
    assert differing_sentences(STORY, f"Good morning. {STORY}", wording) == ()


@pytest.mark.parametrize(
    "asked",
    [
        STORY.replace(" How can", " I paid with a card. How can"),  # one more
        STORY.replace("The confirmation said that it would be here within ten days. ", ""),  # one less
        "How can I get my money back for a table?",  # not long
        " ".join(reversed(STORY.split(". "))),  # another order
        # another story
        "My landlord wants to sell the flat in which I have lived for twenty years, and the agent comes every Sunday "
        "with strangers who look at my things. I have told him that I do not want that. Must I let them in?",
    ],
)
def test_what_has_no_counterpart_leaves_the_texts_to_be_read_as_a_whole(asked: str) -> None:
    assert differing_sentences(STORY, asked, wording) is None
    assert differing_sentences(asked, STORY, wording) is None


def test_a_bounded_number_of_sentences_may_differ() -> None:
    """Otherwise one request would fill the cross-encoder's queue."""
    texts = [
        " ".join(f"In room {at} there is a large brown table {word}." for at in range(9)) for word in ("too", "now")
    ]
    assert differing_sentences(*texts, wording) is None
