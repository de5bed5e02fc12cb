"""Fit the difficulty classifier's heads: logistic regressions over words, vectors and counts.

Each kind has groups of heads, one for each data set, with a head for each tier and one that separates the group from
the kind's others; its questions without choices are a group too. One fit over two exams ranks MMLU at an APGR of 0.647,
heads of its own at 0.677. kNN over labelled neighbours (0.641) and gradient boosting (0.625) over the same vectors rank
worse than the logistic heads (0.661), and so does every average with them; words improve it (5-fold on routellm_mmlu,
static vectors).

Judged kinds have one group, by a Gaussian kernel of the vector (its nearness to some 256 landmarks) instead of the
vector itself: fitted to qlora_oa, alpaca_eval1 then ranks at 0.633 instead of 0.617. Its priors were chosen within
qlora_oa, by the log-loss of two 5-fold cross-validations, with all of its texts as landmarks.

Heads of judged kinds are fitted to all counts, the others and the general heads to those before STYLE: with all, GSM8K
ranks at 0.653 instead of 0.672 (5-fold; 904 prompts).

A kind without labels gets no other kind's heads. Requests with tools have a prior of their own, over what can be
counted in the request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.kinds import JUDGED
from gateway.parts.fit.training.kind_heads import NEVER, KindHeads, fit_kinds
from gateway.parts.fit.training.logistic import fit_wide_logistic
from gateway.parts.fit.training.table import EXAM, TrainingTable
from routing.difficulty.model import TOOLS, kernel, mix
from routing.difficulty.text_statistics import COUNTS, ENOUGH, SHAPE, STYLE

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_RAREST = 5  # texts: words that occur in fewer do not generalise
_RAREST_IN_TEMPLATES = 25  # a prompt's own words occur in each of the templates that it is put in
# Standard deviations of the prior of a weight: of a word's, of a coordinate of the unit vector's, of a standardised
# count's. They do not depend on the number of labels, so more labels weigh more. Chosen by 5-fold APGR on
# routellm_mmlu (whole, and by 1,500 labels) and routellm_gsm8k; those of judged kinds within qlora_oa.
_WORD_PRIOR = 0.8
_VECTOR_PRIOR = 0.35
_COUNT_PRIOR = 0.13
_KERNEL_PRIOR = 1.0
_COUNT_PRIOR_JUDGED = 0.05
_LANDMARKS = 256
_SMALLEST = 1e-4  # of the kernel's eigenvalues: those below it are the rounding of 32-bit weights
_PLAIN_ALONE = 20.0  # of a plain request in a group of their own, whose few texts would not outweigh the priors
_PLAIN_WEIGHT = 0.2  # of a plain request beside verdicts: its labels are assumed
_QUESTION_WEIGHT = 0.5  # a question without its choices takes the full prompt's label, which may not hold for it
_SEPARATED = 1500  # texts of each source, at most, that groups are told apart by
_SEPARATION_PRIOR = 3.0  # groups are easy to separate, and a blurred separation costs each its ranking

_TOOLS_WEIGHTS: Final = {"log_tools": -0.5, "parallel_tools": -0.8, "log_words": -0.3, "log_sentences": -0.3}
"""How the log-odds that the cheapest tier calls the right tools change with each count: an assumption, not fitted."""
_TOOLS_RIGHT: Final = (0.5, 0.85)
"""How often the cheapest and the strongest tier are assumed to call the right tools, on average."""
_TOOLS_REQUESTS: Final[Mapping[str, tuple[float, ...]]] = {
    "log_tools": (1, 2, 4, 8, 16),
    "parallel_tools": (0, 0, 0, 1),
    "log_words": (8, 16, 32, 64, 128),
    "log_sentences": (1, 2, 4),
}
"""The counts of the made-up requests that a request with tools is compared with: every combination of them."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads for `tasks` (k,), indices of the table's kinds, each with the groups (g,) whose `owner` is its position.

    Shapes: `rarity` (BUCKETS,), `words` (BUCKETS, g, tiers), `vector` (g, tiers + 1, dimension), `counts`
    (g, tiers + 1, counts), `bias` (g, tiers + 1): a logit for each tier, then one for the group among its kind's.
    `landmarks` (l, dimension) and `kernel` (tiers, l) belong to a judged kind. `apart` tells the kinds apart.
    """

    tasks: NDArray[np.int64]
    owner: NDArray[np.int64]
    judged: NDArray[np.bool_]
    rarity: Floats
    words: Floats
    vector: Floats
    counts: Floats
    bias: Floats
    landmarks: Floats
    kernel: Floats
    apart: KindHeads

    def kind_logits(self, table: TrainingTable, rows: NDArray[np.intp], counts: Floats) -> Floats:
        """Return the logit of each kind, and of each one's domain, for texts with these counts: (rows, 2 k)."""
        return self.apart.logits(table, rows, counts, self.rarity)

    def logits(self, at: int, table: TrainingTable, rows: NDArray[np.intp], counts: Floats) -> Floats:
        """Return the logits by the heads of one kind, the one at `at` in `tasks`: (rows, groups of it, tiers + 1)."""
        groups = np.flatnonzero(self.owner == at)
        logits = np.einsum("nd,gtd->ngt", table.vectors[rows], self.vector[groups], optimize=True)
        logits += np.einsum("nd,gtd->ngt", counts, self.counts[groups], optimize=True) + self.bias[groups]
        words = _weighted(table.terms[rows], self.rarity) @ self.words[:, groups].reshape(len(self.rarity), -1)
        logits[:, :, :-1] += np.asarray(words).reshape(len(rows), len(groups), -1)
        if self.judged[at]:
            logits[:, :, :-1] += (kernel(table.vectors[rows] @ self.landmarks.T) @ self.kernel.T)[:, None]
        return np.asarray(logits)

    def kinds_of(self, table: TrainingTable, rows: NDArray[np.intp], counts: Floats) -> tuple[Any, NDArray[np.bool_]]:
        """Return the position in `tasks` of each prompt's kind, and whether it lies in that kind's domain: (rows,)."""
        logits = self.kind_logits(table, rows, counts)
        chosen = logits[:, : len(self.tasks)].argmax(axis=1)
        tools = [at for at, task in enumerate(self.tasks) if table.kinds[task] == TOOLS]
        if tools:
            chosen = np.where(table.has_tools[rows], tools[0], chosen)
        return chosen, logits[np.arange(len(rows)), len(self.tasks) + chosen] > 0


def step_to(mean: float, tier: int, logits: Floats) -> float:
    """Return the step that, added to a tier's logits (texts, groups, tiers + 1), makes its mean P(right) `mean`."""
    is_tier = np.arange(logits.shape[-1]) == tier
    return _rising_to(mean, lambda step: float(mix(logits + step * is_tier)[:, tier].mean()))


@dataclass(frozen=True, slots=True)
class GeneralHeads:
    """Heads over the counts alone, for texts outside the domain: `counts` (tiers, counts), `bias` (tiers,)."""

    counts: Floats
    bias: Floats

    def probabilities(self, counts: Floats) -> Floats:
        """Return P(right) of texts with these counts, shape (texts, tiers)."""
        return np.asarray(1 / (1 + np.exp(-(counts @ self.counts.T + self.bias))))

    def moved_to(self, mean: float, table: TrainingTable) -> GeneralHeads:
        """Shift the cheapest tier's head so that its mean P(right) is `mean`."""
        logits = (table.counts[: table.prompts] @ self.counts.T + self.bias)[:, 0]
        step = _rising_to(mean, lambda step: float((1 / (1 + np.exp(-(logits + step)))).mean()))
        return replace(self, bias=self.bias + step * (np.arange(len(self.bias)) == 0))


def _rising_to(goal: float, at: Callable[[float], float]) -> float:
    """Return where an increasing function reaches the goal, by bisection of -30..30."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) < goal else (low, middle)
    return (low + high) / 2


def fit(table: TrainingTable, chosen: NDArray[np.bool_], claimed: Collection[int] = ()) -> Heads:
    """Fit the heads of every kind to the chosen prompts, with and without choices; kinds of `claimed` get a domain.

    They are fitted to the raw counts: fitted to counts as serving clamps them, they rank routellm_mmlu at 0.675 instead
    of 0.679. The kind `tools` is there even without chosen prompts, by a prior.
    """
    rows = table.fitted(chosen)
    rarity = fit_rarity(table, chosen)
    weight = np.where(rows < table.prompts, 1.0, _QUESTION_WEIGHT)
    task = table.task[table.owner[rows]]
    tasks = np.unique([*task, *(kind for kind, name in enumerate(table.kinds) if name == TOOLS)])
    judged = np.array([table.kinds[number] in JUDGED for number in tasks])
    weight[table.plain[rows]] *= np.where(
        judged[np.searchsorted(tasks, task[table.plain[rows]])], _PLAIN_WEIGHT, _PLAIN_ALONE
    )
    every_task = table.task[table.owner]
    members = [np.unique(table.group[every_task == number]) for number in tasks]  # of tools, it may be none
    owner = np.repeat(np.arange(len(tasks)), [max(1, len(groups)) for groups in members])
    shape = (len(owner), table.tiers + 1)
    width, counted = table.vectors.shape[1], table.counts.shape[1]
    heads = Heads(
        tasks,
        owner,
        judged,
        rarity,
        np.zeros((len(rarity), len(owner), table.tiers)),
        np.zeros((*shape, width)),
        np.zeros((*shape, counted)),
        np.zeros(shape),
        _landmarks(table.vectors[rows[judged[np.searchsorted(tasks, task)]]]),
        np.zeros((table.tiers, 0)),
        fit_kinds(table, chosen, rarity, tasks, claimed),
    )
    factor, heads = (
        _kernel_factor(heads.landmarks),
        replace(heads, kernel=np.zeros((table.tiers, len(heads.landmarks)))),
    )
    for at, groups in enumerate(members):
        first = int(np.searchsorted(owner, at))
        if not len(groups) or not (task == tasks[at]).any():
            _assume_tools(heads, first)
            continue
        every = rows[task == tasks[at]]
        if len(groups) > 1 and len(every):
            separating = _separated(table, every, np.searchsorted(groups, table.group[every]), len(groups))
            own = slice(first, first + len(groups))
            heads.vector[own, -1], heads.counts[own, -1], heads.bias[own, -1] = separating
        for group, number in enumerate(groups, start=first):
            mine = table.group[rows] == number
            own = rows[mine]
            if not len(own):
                continue
            mean, scale = _standard(table.counts[own], judged=bool(judged[at]))
            vectors = table.vectors[own] * _VECTOR_PRIOR
            if judged[at]:
                vectors = kernel(table.vectors[own] @ heads.landmarks.T) @ factor * _KERNEL_PRIOR
            words = _weighted(table.terms[own], rarity) * _WORD_PRIOR
            dense = np.hstack([vectors, (table.counts[own] - mean) * scale])
            for tier in range(table.tiers):
                fitted = _binary(words, dense, table.targets[table.owner[own], tier], weight[mine])
                heads.words[:, group, tier] = fitted[: len(rarity)] * _WORD_PRIOR
                by_vector, by_counts = np.split(fitted[len(rarity) : -1], [vectors.shape[1]])
                if judged[at]:
                    heads.kernel[tier] = factor @ by_vector * _KERNEL_PRIOR
                else:
                    heads.vector[group, tier] = by_vector * _VECTOR_PRIOR
                heads.counts[group, tier] = by_counts * scale
                heads.bias[group, tier] = fitted[-1] - heads.counts[group, tier] @ mean
            if judged[at]:
                labelled = own[~table.plain[own]]
                if not len(labelled):
                    continue
                logits = heads.logits(at, table, labelled, table.counts[labelled])
                wanted = table.labels[table.owner[labelled]].mean(axis=0)
                heads.bias[group, :-1] += [step_to(share, tier, logits) for tier, share in enumerate(wanted)]
    return heads


def _landmarks(vectors: Floats) -> Floats:
    """Return unit vectors, of which every one of these is near one; shape (at most _LANDMARKS, dimension)."""
    from sklearn.cluster import KMeans

    vectors = np.unique(vectors, axis=0)
    if len(vectors) <= _LANDMARKS:
        return vectors
    centres: Floats = KMeans(_LANDMARKS, n_init=1, max_iter=20, random_state=0).fit(vectors).cluster_centers_
    return np.asarray(centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12))


def _kernel_factor(landmarks: Floats) -> Floats:
    """Return what turns kernels with the landmarks into features whose products are kernels (Nystroem's method)."""
    values, vectors = np.linalg.eigh(kernel(landmarks @ landmarks.T))
    kept = values > _SMALLEST
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


def fit_general(table: TrainingTable, chosen: NDArray[np.bool_]) -> GeneralHeads:
    """Fit the general heads to the chosen prompts, whatever their kind."""
    from scipy.sparse import csr_matrix

    rows = table.fitted(chosen)
    rows = rows[~table.plain[rows]]
    mean, scale = _standard(table.counts[rows], judged=False)
    dense = (table.counts[rows] - mean) * scale
    weight = np.where(rows < table.prompts, 1.0, _QUESTION_WEIGHT)
    none = csr_matrix((len(rows), 0))
    fitted = np.array([_binary(none, dense, right, weight) for right in table.targets[table.owner[rows]].T])
    counts = fitted[:, :-1] * scale
    return GeneralHeads(counts, fitted[:, -1] - counts @ mean)


def tools_requests() -> Floats:
    """Return the counts of made-up requests with tools, shape (requests, len(COUNTS))."""
    combined = np.array(list(product(*_TOOLS_REQUESTS.values())), np.float64)
    counts = np.zeros((len(combined), len(COUNTS)))
    for name, values in zip(_TOOLS_REQUESTS, combined.T, strict=True):
        counts[:, COUNTS.index(name)] = np.log1p(values) if name.startswith("log_") else values
    return counts


def _assume_tools(heads: Heads, at: int) -> None:
    """Set the heads of requests with tools to the assumed ones."""
    for name, weight in _TOOLS_WEIGHTS.items():
        heads.counts[at, 0, COUNTS.index(name)] = weight
    logits = tools_requests() @ heads.counts[at, 0]
    heads.bias[at, 0] = _rising_to(_TOOLS_RIGHT[0], lambda step: float((1 / (1 + np.exp(-(logits + step)))).mean()))
    # Tiers in between are as good as the cheapest on an easy request, and nearly as good as the strongest on average.
    heads.bias[at, 1:-1] = np.log(_TOOLS_RIGHT[1] / (1 - _TOOLS_RIGHT[1]))


def _separated(
    table: TrainingTable, rows: NDArray[np.intp], part: NDArray[np.int64], parts: int
) -> tuple[Floats, Floats, Floats]:
    """Fit what tells parts of these texts apart; return the weights of vectors and of counts, and the intercepts.

    Counts of the request around the text have no say: an exam question stays one in the middle of a conversation.
    `part` (rows,) is each text's, 0 to `parts`. Of a source _SEPARATED texts count at most.
    """
    from sklearn.linear_model import LogisticRegression

    width, counted = table.vectors.shape[1], table.counts.shape[1]
    made = np.zeros((parts, width)), np.zeros((parts, counted)), np.full(parts, -NEVER)
    present = np.unique(part)
    made[2][present] = 0.0
    if len(present) < 2:
        return made
    generator = np.random.default_rng(0)
    some: list[NDArray[np.intp]] = []
    for number in present:
        for source in np.unique(table.source[rows[part == number]]):
            own = np.flatnonzero((part == number) & (table.source[rows] == source))
            some.append(generator.permutation(own)[:_SEPARATED])
    index = np.concatenate(some)
    texts = rows[index]
    mean, spread = table.counts[texts].mean(axis=0), table.counts[texts].std(axis=0)
    of_text = (np.arange(counted) < SHAPE) | (np.arange(counted) >= STYLE)
    factor = np.divide(1.0, spread, out=np.zeros_like(spread), where=(spread > 1e-6) & of_text)
    inputs = np.hstack([table.vectors[texts] * _SEPARATION_PRIOR, (table.counts[texts] - mean) * factor])
    model = LogisticRegression(C=1.0, max_iter=300, tol=1e-3)
    fitted = model.fit(inputs, part[index])
    by_input, bias = fitted.coef_, fitted.intercept_
    if len(present) == 2:
        by_input, bias = np.vstack([-by_input, by_input]) / 2, np.concatenate([-bias, bias]) / 2
    made[0][present] = by_input[:, :width] * _SEPARATION_PRIOR
    made[1][present] = by_input[:, width:] * factor
    made[2][present] = bias - made[1][present] @ mean
    return made


def _standard(counts: Floats, *, judged: bool) -> tuple[Floats, Floats]:
    """Return the mean of the counts, and the factor that standardises those that are fitted; 0 for the rest.

    A count that is constant in the data is not fitted, so that it has no effect when it varies in traffic.
    """
    spread = counts.std(axis=0)
    fitted = (spread > 1e-6) & (judged | (np.arange(counts.shape[1]) < STYLE))
    prior = _COUNT_PRIOR_JUDGED if judged else _COUNT_PRIOR
    return counts.mean(axis=0), np.divide(prior, spread, out=np.zeros_like(spread), where=fitted)


def fit_rarity(table: TrainingTable, chosen: NDArray[np.bool_]) -> Floats:
    """Return the rarity of each bucket in the chosen prompts, or in templates for words that only these have."""
    rarity = _rarity(table.terms[table.fitted(chosen)])
    in_templates = np.flatnonzero(chosen[table.owner] & (table.form >= EXAM))
    return np.where(rarity > 0, rarity, _rarity(table.terms[in_templates], _RAREST_IN_TEMPLATES))


def _rarity(terms: csr_matrix, rarest: int = _RAREST) -> Floats:
    """Return each bucket's inverse document frequency, 1 + log((1 + texts) / (1 + texts with it)); 0 for the rarest."""
    texts = np.bincount(terms.indices, minlength=terms.shape[1])
    return np.where(texts < rarest, 0.0, 1.0 + np.log((1 + terms.shape[0]) / (1 + texts)))


def _weighted(terms: csr_matrix, rarity: Floats) -> csr_matrix:
    """Weight each text's terms by rarity and scale them as `routing.difficulty.text_statistics.shortened` does."""
    weighted = terms.multiply(rarity).tocsr()
    length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return weighted.multiply(1 / np.maximum(length, ENOUGH)[:, None]).tocsr()


def _binary(words: csr_matrix, dense: Floats, right: Floats, weight: Floats) -> Floats:
    """Fit P(right) and return the coefficients of the words, of the dense inputs, and the intercept."""
    total = float(weight.sum())
    if not 0 < (weight * right).sum() < total:
        # Answers that are all right or all wrong give an intercept alone, by Laplace's rule of succession.
        coefficients = np.zeros(words.shape[1] + dense.shape[1] + 1)
        coefficients[-1] = np.log((float((weight * right).sum()) + 1) / (total - float((weight * right).sum()) + 1))
        return coefficients
    return fit_wide_logistic(words, dense, right, weight)
