"""Hold the labels of one surface as arrays, and part them into what is fitted and what is held out."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.datasets import DataError
from routing.difficulty.text_statistics import COUNTS

_HELD_OUT = 0.3
_FEWEST = 100
_FEWEST_OF_A_KIND = 10


@dataclass(frozen=True, slots=True)
class OwnLabels:
    """Labels of one surface, of one small and one strong tier, oldest first; n of each.

    `right` (n, 2) is how adequate the small and the strong answer were: 0, 0.5 or 1. `p_right` (n, 2) and `in_domain`
    are what the classifier says. `conversation` groups the turns of one conversation. `source` (n,) is the kind of each
    request, or another name of where it is from: what a table could know without reading the request.
    """

    request_id: NDArray[np.str_]
    tenant: NDArray[np.str_]
    at: Floats
    conversation: NDArray[np.int64]
    right: Floats
    p_right: Floats
    in_domain: NDArray[np.bool_]
    vectors: Floats
    counts: Floats
    source: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: NDArray[Any]) -> OwnLabels:
        """Return the labels at these indices, or under this mask."""
        return replace(self, **{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @property
    def gain(self) -> Floats:
        """How much better the strong tier's answer was, -1..1."""
        return np.asarray(self.right[:, 1] - self.right[:, 0])


@dataclass(frozen=True, slots=True)
class Chosen:
    """The labels that can be fitted together, and how many of the surface's others could not, by reason."""

    labels: OwnLabels
    left_out: Mapping[str, int]


def chosen_labels(
    rows: Sequence[Mapping[str, Any]], surface: str, ends: tuple[str, str], classifier: str, embedder: str
) -> Chosen:
    """Return the labels of a surface's small and strong tier, made with this classifier and encoder.

    `rows` are labels as `measures.label` decodes them, in any order. Raises DataError where they are too few.
    """
    left_out: dict[str, int] = {}
    kept: list[Mapping[str, Any]] = []
    for row in sorted((row for row in rows if row["surface"] == surface), key=lambda row: float(row["judged_at"])):
        why = (
            "of other tiers"
            if (row["small"]["tier"], row["strong"]["tier"]) != ends
            else "rated by another classifier"
            if (row["classifier"], row["embedder"]) != (classifier, embedder)
            else "of another version"
            if len(row["counts"]) != len(COUNTS)
            else ""
        )
        if why:
            left_out[why] = left_out.get(why, 0) + 1
        else:
            kept.append(row)
    right = np.array([[row["small"]["adequate"], row["strong"]["adequate"]] for row in kept]).reshape(-1, 2)
    least = min((min(column.sum(), len(column) - column.sum()) for column in right[:, :1].T), default=0)
    if len(kept) < _FEWEST or least < _FEWEST_OF_A_KIND:
        others = "".join(f"; {count} {why}" for why, count in left_out.items())
        raise DataError(
            f"{surface} has {len(kept)} labels of {ends[0]} and {ends[1]}, with {right[:, 0].sum():g} adequate answers "
            f"of {ends[0]}; at least {_FEWEST} labels, and {_FEWEST_OF_A_KIND} answers of each kind, are needed{others}"
        )
    return Chosen(
        OwnLabels(
            np.array([row["request_id"] for row in kept]),
            np.array([row["tenant"] for row in kept]),
            np.array([float(row["judged_at"]) for row in kept]),
            np.array([int(row["conversation"]) for row in kept], np.int64),
            right,
            np.array([[row["p_right"][0], row["p_right"][-1]] for row in kept], np.float64),
            np.array([bool(row["in_domain"]) for row in kept]),
            np.array([unpacked(row["vector"]) for row in kept]),
            np.array([row["counts"] for row in kept], np.float64),
            np.array([str(row.get("kind") or "") for row in kept]),
        ),
        left_out,
    )


def held_out(labels: OwnLabels) -> NDArray[np.bool_]:
    """Return the mask of the labels to measure on: the conversations that began last, about three labels in ten.

    A conversation is wholly on one side, and what is measured comes after what is fitted, as it will when it serves.
    """
    return began_last(labels.conversation, labels.at)


def began_last(conversation: NDArray[np.int64], at: Floats) -> NDArray[np.bool_]:
    """Return the mask of the turns, in order of time, whose conversations began last: about three in ten."""
    _, first, owner = np.unique(conversation, return_index=True, return_inverse=True)
    began = at[first][owner]  # the first turn of a conversation is its oldest
    return np.asarray(began > np.quantile(began, 1 - _HELD_OUT, method="lower"))


def unpacked(text: str) -> Floats:
    """Return the numbers that `gateway.parts.measures.label` packed as float16 in base64."""
    return np.frombuffer(base64.b64decode(text), np.float16).astype(np.float64)
