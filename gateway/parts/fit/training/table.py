"""Turn labelled prompts into arrays: the training data of the difficulty classifier."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.datasets import Example, without_choices
from gateway.parts.fit.embedding import Remembered
from gateway.parts.fit.folds import numbers_of_names
from gateway.parts.fit.kinds import JUDGED, PLAIN, features_of_example, kind_of
from gateway.parts.fit.training.wrappers import wrapped_prompts
from gateway.report import OnProgress
from routing.difficulty.model import TOOLS
from routing.difficulty.text_statistics import BUCKETS, counts_of, terms_of, tokenise
from routing.embedder import Embedder, bounded
from routing.features import Features, features_of_text

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


PROMPT, QUESTION, EXAM, IN_CHAT = range(4)
"""The forms of a text; see `TrainingTable.form`."""

_WRAPPED: Final = 1000
"""Prompts of each source, at most, that are put into templates: two each, and more where there are fewer prompts."""

_TEMPLATES_EACH: Final = 8


@dataclass(frozen=True, slots=True)
class TrainingTable:
    """Texts as arrays, one row each.

    The first `prompts` rows are prompts; the others are questions without their choices, and prompts in templates,
    which only serve to tell kinds apart. `owner` gives each row's prompt.
    """

    vectors: Floats
    counts: Floats
    terms: csr_matrix
    """Shape (texts, BUCKETS): 1 + log(frequency of the bucket's terms in the text)."""
    chars: NDArray[np.int64]
    owner: NDArray[np.int64]
    labels: Floats
    """Shape (prompts, tiers): how right each tier was, 0..1, cheapest first."""
    targets: Floats
    """What heads are fitted to, shape (prompts, tiers): the labels, or for kinds of JUDGED `ranked` labels."""
    task: NDArray[np.int64]
    """Each prompt's kind: an index of `kinds`."""
    kinds: tuple[str, ...]
    group: NDArray[np.int64]
    """Number of the heads that each text is fitted by: those of its data set, of its kind's questions without choices,
    or of its whole kind where that is of JUDGED."""
    source: NDArray[np.int64]
    """A number for each data set, and for each kind's questions without their choices; shape (texts,)."""
    plain: NDArray[np.bool_]
    """Whether each text is one of PLAIN, whose labels are assumed."""
    has_tools: NDArray[np.bool_]
    """Whether each prompt's request has tools, which makes it of that kind."""
    kinds_by_vector: bool
    """Whether vectors help to tell kinds apart; if not, texts in templates have zeros in place of theirs."""
    form: NDArray[np.int8]
    """What each text is: a PROMPT, a QUESTION without its choices, or a prompt in a template of an EXAM or a CHAT."""

    def fitted(self, chosen: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the texts of the chosen prompts that heads are fitted to: with and without choices, no templates."""
        return np.flatnonzero(chosen[self.owner] & (self.form <= QUESTION))

    @property
    def prompts(self) -> int:
        """Number of texts that are prompts with labels of their own."""
        return len(self.labels)

    @property
    def tiers(self) -> int:
        """Number of tiers that are labelled."""
        return int(self.labels.shape[1])


def tabulate(
    examples: Sequence[Example],
    embedder: Embedder,
    bare_questions: bool,
    on_progress: OnProgress,
    named: Mapping[str, str] = MappingProxyType({}),
    kinds_by_vector: bool = True,
) -> TrainingTable:
    """Return the table of these examples, all labelled for the same number of tiers.

    `named` maps names of data sets to kinds. The kind `tools` is there even without examples. Without `kinds_by_vector`
    texts in templates, two thirds of all, are not embedded.
    """
    texts = [example.prompt for example in examples]
    names = [kind_of(example, named) for example in examples]
    requests = [features_of_example(example) for example in examples]
    owner = list(range(len(examples)))
    for index, example in enumerate(examples if bare_questions else ()):
        question = without_choices(example.prompt)
        if question is not None:
            texts.append(question)
            requests.append(features_of_text(question))
            owner.append(index)
    forms = [PROMPT] * len(examples) + [QUESTION] * (len(texts) - len(examples))
    for index, text, one in _in_templates(examples, names):
        texts.append(text)
        requests.append(features_of_text(text))
        owner.append(index)
        forms.append(one)
    embedded = [text for text, form in zip(texts, forms, strict=True) if kinds_by_vector or form <= QUESTION]
    vectors = np.zeros((len(texts), embedder.dimension))
    vectors[: len(embedded)] = Remembered(embedder, on_progress).embed(embedded)  # the others stand behind them
    counts, terms = _read(texts, requests)
    rows = np.array(owner)
    labels = np.array([[answer.correct for answer in example.answers] for example in examples])
    kinds = tuple(dict.fromkeys([*names, TOOLS]))
    targets = labels.copy()
    sources = np.array([example.dataset for example in examples])
    judged = np.array([name in JUDGED for name in names])
    for source in dict.fromkeys(sources[judged].tolist()):
        own = (sources == source) & judged
        targets[own] = ranked(labels[own])
    form = np.array(forms, np.int8)
    named_sources = [
        (names[row], "" if form == QUESTION else sources[row], form == QUESTION)
        for row, form in zip(rows, forms, strict=True)
    ]
    named_groups = [(name,) if name in JUDGED else (name, *rest) for name, *rest in named_sources]
    return TrainingTable(
        vectors=vectors,
        counts=counts,
        terms=terms,
        chars=np.array([len(text) for text in texts]),
        owner=rows,
        labels=labels,
        targets=targets,
        task=np.array([kinds.index(name) for name in names]),
        kinds=kinds,
        group=numbers_of_names(named_groups),
        source=numbers_of_names(named_sources),
        plain=(sources == PLAIN)[rows],
        has_tools=np.array([request.has_tools for request in requests[: len(examples)]]),
        kinds_by_vector=kinds_by_vector,
        form=form,
    )


def _in_templates(examples: Sequence[Example], kinds: Sequence[str]) -> Iterator[tuple[int, str, int]]:
    """Yield prompts in templates, some of each data set: the index of the prompt, the text and its form."""
    generator = random.Random(0)  # noqa: S311  (nothing secret is drawn)
    by_source: dict[tuple[str, str], list[int]] = {}
    for index, example in enumerate(examples):
        if kinds[index] != TOOLS:
            by_source.setdefault((example.dataset, kinds[index]), []).append(index)
    for rows in by_source.values():
        some = rows if len(rows) <= _WRAPPED else generator.sample(rows, _WRAPPED)
        each = min(max(2 * _WRAPPED // len(some), 2), _TEMPLATES_EACH)
        for index in some:
            for text, exam in wrapped_prompts(examples[index].prompt, kinds[index], each, generator):
                yield index, text, EXAM if exam else IN_CHAT


def ranked(labels: Floats) -> Floats:
    """Bring one data set's labels (prompts, tiers) to a level that other data sets share.

    Each tier but the strongest gets the share of prompts on which it is further behind the strongest, equal ones
    counting half; the strongest keeps its mean.
    """
    targets = np.empty(labels.shape)
    targets[:, -1] = labels[:, -1].mean()
    for tier in range(labels.shape[1] - 1):
        behind = np.round(labels[:, -1] - labels[:, tier], 9)
        ordered = np.sort(behind)
        below = np.searchsorted(ordered, behind, "left") + np.searchsorted(ordered, behind, "right")
        targets[:, tier] = 1.0 - below / (2.0 * len(behind))
    return targets


def _read(texts: Sequence[str], requests: Sequence[Features]) -> tuple[Floats, csr_matrix]:
    """Return the counts and terms of prompts, each as the gateway would read it in a request of its own."""
    from scipy.sparse import csr_matrix

    counts: list[NDArray[Any]] = []
    columns: list[NDArray[Any]] = []
    often: list[NDArray[Any]] = []
    for text, request in zip(texts, requests, strict=True):
        reading = tokenise(bounded(text))
        counts.append(counts_of(request, reading))
        some, values = terms_of(reading)
        columns.append(some)
        often.append(values)
    starts = np.cumsum([0, *map(len, columns)])
    terms = csr_matrix((np.concatenate(often), np.concatenate(columns), starts), shape=(len(texts), BUCKETS))
    return np.array(counts, np.float64), terms
