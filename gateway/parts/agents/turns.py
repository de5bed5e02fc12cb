"""Say how hard the turns before make a turn, from their texts.

A turn that says enough by itself counts for each later one that has to do with it: by how hard it is (`hardness_of`,
0..1), times DECAY for each such turn from it to the later one, itself excluded. It has to do with it unless the later
one asks for hardly any work (an effort below WORK) and the cosine of their vectors stays below RELATED: that is an easy
question about something else. A later turn that asks for some work is taken to be about it whatever the words, as it
often shares none (`Please use shorter names for the constructors.`). The hardest counts.

This follows from the texts in the request, the policy and the classifier alone, so it is the same in every worker and
after a restart. What is remembered of a turn only saves reading it again.

routing/README.md has what DECAY, WORK and RELATED were chosen on, and how they do elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from routing.decide import hardness_of
from routing.features import features_of_text, hangs

if TYPE_CHECKING:
    from policies.model import Policy
    from routing.difficulty.model import Difficulty, DifficultyModel
    from routing.embedder import Embedder, Vector
    from routing.features import Features

T = TypeVar("T")


class Recent(Generic[T]):
    """A mapping of at most `most` values that evicts the least recently used."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[int, T] = {}

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._values)

    def get(self, key: int) -> T | None:
        """Return the value, which counts as a use; None if there is none."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    def put(self, key: int, value: T) -> None:
        """Keep a value, in place of the one not used for longest if there are too many."""
        self._values.pop(key, None)
        if len(self._values) >= self._most:
            del self._values[next(iter(self._values))]
        self._values[key] = value


DECAY: Final = 0.9
RELATED: Final = 0.15
WORK: Final = 0.05
REACH: Final = 8
"""Most turns that count; one farther back could count for 0.39 at most."""
_MOST: Final = 2048
"""Turns that are remembered: some 4 MB with vectors of 384 dimensions."""
_NAMING: Final = 4
"""Earlier turns by whose texts a turn is told from those of other conversations with the same beginning."""

_LONG: Final = 1 << 20
_SAMPLES: Final = 256
_SAMPLE: Final = 1024
"""Characters of a text that is hashed in samples, and how many samples of how many characters each those are."""


def keys_of(conversation: str, features: Features) -> tuple[int, int]:
    """Return the keys of the turn before and of this one, in this process: 64-bit hashes of the latest user messages.

    `conversation` names the conversation by its tenant, its user and its beginning. Of a text longer than `_LONG` its
    length and samples of it are hashed: all of 30 MB would hold the event loop for 10 ms.
    """
    turns, texts = features.turns, (features.text, *features.earlier[: _NAMING + 1])
    if max(map(len, texts)) > _LONG:
        texts = tuple(map(_sampled, texts))
    before, this = texts[1 : _NAMING + 2], texts[: _NAMING + 1]
    return hash((conversation, turns - 1, before)), hash((conversation, turns, this))


def _sampled(text: str) -> str:
    if len(text) <= _LONG:
        return text
    starts = range(0, len(text), len(text) // _SAMPLES)
    return f"{len(text)} {text[-_SAMPLE:]}{''.join([text[at : at + _SAMPLE] for at in starts])}"


def rated_in_conversation(
    policy: Policy, model: DifficultyModel, embedder: Embedder, features: Features
) -> tuple[Difficulty, Features]:
    """Return a request's difficulty, and its features with how hard the turns before are: every text is read for it."""
    vector = embedder.embed((features.rated_text,))[0]
    if features.earlier:
        memory = TurnMemory()
        if unread := memory.unread(features.earlier):
            for text, read in zip(unread, embedder.embed(unread), strict=True):
                memory.put(text, read)
        rated = model.assess(vector, features)
        before = memory.hardest(policy, model, vector, rated.effort, features.earlier)
        return rated, features._replace(before=before)
    return model.assess(vector, features), features


class _Turn:
    """What is remembered of a turn. `vector` is None until it is read, `difficulty` until it matters."""

    __slots__ = ("difficulty", "says_enough", "vector")

    def __init__(self, text: str) -> None:
        self.says_enough = not hangs(text)
        self.vector: Vector | None = None
        self.difficulty: Difficulty | None = None


class TurnMemory:
    """The vectors and difficulties of turns, by their texts."""

    def __init__(self, most: int = _MOST) -> None:
        self.turns: Recent[_Turn] = Recent(most)

    def put(self, text: str, vector: Vector) -> None:
        """Remember the vector of a turn."""
        turn = self._turn(text)
        if turn.says_enough and turn.vector is None:
            turn.vector = vector.copy()  # it may be a row of a batch, which would be kept with it

    def unread(self, earlier: Sequence[str]) -> list[str]:
        """Return the texts of the earlier turns that count and have no vector yet, the latest first."""
        return [text for text, turn in self._counting(earlier) if turn.vector is None]

    def hardest(
        self, policy: Policy, model: DifficultyModel, vector: Vector, effort: float | None, earlier: Sequence[str]
    ) -> float | None:
        """Return how hard the earlier turns make the one with this vector and effort, 0..1; None if one has no vector
        yet.
        """
        hardest, weight = 0.0, 1.0
        asks_work = effort is None or effort >= WORK
        for text, turn in self._counting(earlier):
            weight *= DECAY
            if weight <= hardest:
                break
            if turn.vector is None:
                return None
            if not asks_work and float(vector @ turn.vector) < RELATED:
                continue
            difficulty = turn.difficulty
            if difficulty is None or difficulty.model_version != model.version:
                # Of the text alone, as what surrounded it then is not known to every worker.
                difficulty = turn.difficulty = model.assess(turn.vector, features_of_text(text))
            hardest = max(hardest, weight * hardness_of(policy, difficulty))
        return hardest

    def _counting(self, earlier: Sequence[str]) -> Iterator[tuple[str, _Turn]]:
        count = 0
        for text in earlier:
            turn = self._turn(text)
            if turn.says_enough:
                yield text, turn
                count += 1
                if count == REACH:
                    return

    def _turn(self, text: str) -> _Turn:
        key = hash(text)
        turn = self.turns.get(key)
        if turn is None:
            turn = _Turn(text)
            self.turns.put(key, turn)
        return turn
