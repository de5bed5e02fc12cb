"""What the index in the store makes of a server's replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from cache.index import Neighbour
from cache.store.base import Command, Store, StoreUnavailable
from gateway.parts.vector_sets.part import VectorSetIndex

PARTITION = "tierline:c3:{ab}:s:cd"


class Replying:
    """A store that replies so to every command, and has what it was sent."""

    def __init__(self, reply: Any = None) -> None:
        self.reply = reply
        self.sent: list[Command] = []

    async def executed(self, commands: Sequence[Command]) -> list[Any]:
        self.sent += commands
        return [self.reply for _ in commands]

    ask = apply = executed


def index_at(store: Replying) -> VectorSetIndex:
    return VectorSetIndex(cast(Store, store))


async def test_scores_are_read_as_cosines() -> None:
    """Vector sets tell (1 + cosine) / 2; an element has the end of its entry's key and its question."""
    near = await index_at(Replying([b":x:1\0One?", b"1", b":x:2\0Two?", b"0.75"])).nearest(PARTITION, np.ones(4), 2)
    scope = PARTITION[: PARTITION.index("}") + 1]
    assert near == [Neighbour(f"{scope}:x:1", "One?", 1.0), Neighbour(f"{scope}:x:2", "Two?", 0.5)]


@pytest.mark.parametrize(
    ("reply", "reason"), [(Exception("WRONGTYPE"), "index"), ("text", "error"), (None, "error"), ([b"one"], "error")]
)
async def test_what_is_no_list_of_elements_is_an_error(reply: Any, reason: str) -> None:
    """A refusal is one of the index, and all else one of the store."""
    with pytest.raises(StoreUnavailable) as failed:
        await index_at(Replying(reply)).nearest(PARTITION, np.ones(4), 2)
    assert failed.value.reason == reason


async def test_an_element_goes_from_its_set_and_its_order() -> None:
    """With one command each, of which a refusal is the index's."""
    store = Replying()
    await index_at(store).forget(PARTITION, Neighbour("tierline:c3:{ab}:x:1", "One?", 0.9))
    assert store.sent == [
        Command((b"VREM", f"{PARTITION}:q".encode(), b":x:1\0One?"), optional=True),
        Command((b"ZREM", f"{PARTITION}:qe".encode(), b":x:1\0One?"), optional=True),
    ]
