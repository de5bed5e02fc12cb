"""Turn labelled prompts into arrays: the training data of the difficulty classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline.datasets import Example, without_choices
from offline.embedding import Remembered
from offline.measures.curves import Floats
from offline.progress import OnProgress
from routing.difficulty.text_statistics import BUCKETS, counts_of, read, terms_of
from routing.embedding.embedder import Embedder, bounded
from routing.features import features_of_text

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True, slots=True)
class TrainingTable:
    """Texts as arrays, one row each.

    The first `prompts` rows are prompts; the others are questions without their choices. `owner` gives each row's
    prompt.
    """

    vectors: Floats
    counts: Floats
    terms: csr_matrix
    """Shape (texts, BUCKETS): 1 + log(frequency of the bucket's terms in the text)."""
    chars: NDArray[np.int64]
    owner: NDArray[np.int64]
    labels: Floats
    """Shape (prompts, tiers): how right each tier was, 0..1, cheapest first."""
    task: NDArray[np.int64]
    """Each prompt's kind of task: the index of its data set."""

    @property
    def prompts(self) -> int:
        """Number of texts that are prompts with labels of their own."""
        return len(self.labels)

    @property
    def tiers(self) -> int:
        """Number of tiers that are labelled."""
        return int(self.labels.shape[1])


def tabulate(
    examples: Sequence[Example], embedder: Embedder, bare_questions: bool, on_progress: OnProgress
) -> TrainingTable:
    """Return the table of these examples, all labelled for the same number of tiers."""
    texts = [example.prompt for example in examples]
    owner = list(range(len(examples)))
    for index, example in enumerate(examples if bare_questions else ()):
        question = without_choices(example.prompt)
        if question is not None:
            texts.append(question)
            owner.append(index)
    vectors = Remembered(embedder, on_progress).embed(texts).astype(np.float64)
    counts, terms = _read(texts)
    labels = np.array([[answer.correct for answer in example.answers] for example in examples])
    tasks = {name: index for index, name in enumerate(dict.fromkeys(example.dataset for example in examples))}
    task = np.array([tasks[example.dataset] for example in examples])
    return TrainingTable(vectors, counts, terms, np.array([len(text) for text in texts]), np.array(owner), labels, task)


def _read(texts: Sequence[str]) -> tuple[Floats, csr_matrix]:
    """Return the counts and terms of prompts, each as the gateway would read it in a request of its own."""
    from scipy.sparse import csr_matrix

    counts: list[NDArray[Any]] = []
    columns: list[NDArray[Any]] = []
    often: list[NDArray[Any]] = []
    for text in texts:
        reading = read(bounded(text))
        counts.append(counts_of(features_of_text(text), reading))
        some, values = terms_of(reading)
        columns.append(some)
        often.append(values)
    starts = np.cumsum([0, *map(len, columns)])
    terms = csr_matrix((np.concatenate(often), np.concatenate(columns), starts), shape=(len(texts), BUCKETS))
    return np.array(counts, np.float64), terms
