"""What audits observe of one surface, in batches: labels, complaints and counts; and how a batch is encoded.

A batch has scores and verdicts and no text. It names languages, and the tenants and teams that asked most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from cache.entry import CorruptEntry
from cache.semantic.hit_bound import Complaint

_NOTHING: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Label:
    """The result of comparing a stored with a new answer. `weight`: the number of such requests it represents.

    `judged`: by a judge or a person, who may lower the threshold below the strict one. `language` and `owner` are the
    request's, '' where they are not known.
    """

    score: float
    wrong: bool
    weight: float
    judged: bool = False
    language: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some requests of a surface: their number, the scores of candidates without a veto, and new labels.

    `asked` is the number of the requests of each owner that had complained before, `withdrawn` names the requests whose
    complaints, in earlier batches, were no wrong hits. `languages` and `owners` are the requests of each language, and
    of the owners that asked most.
    """

    requests: int
    scores: tuple[float, ...] = ()
    labels: tuple[Label, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    asked: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    withdrawn: tuple[str, ...] = ()
    languages: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    owners: Mapping[str, int] = field(default_factory=lambda: _NOTHING)


def encode_batch(batch: Batch) -> bytes:
    """Encode a batch as a line of the stream: JSON, without fields that are empty.

    Scores are rounded to six digits, but not those of labels and complaints: a threshold may be set just above one.
    """
    fields = {
        "requests": batch.requests,
        "scores": [round(score, 6) for score in batch.scores],
        "labels": [(one.score, one.wrong, one.weight, one.judged, one.language, one.owner) for one in batch.labels],
        "complaints": [(one.score, one.owner, one.request) for one in batch.complaints],
        "asked": batch.asked,
        "withdrawn": batch.withdrawn,
        "languages": batch.languages,
        "owners": batch.owners,
    }
    return orjson.dumps({name: value for name, value in fields.items() if value or name == "requests"})


def decode_batch(data: bytes) -> Batch:
    """Decode a line of the stream. Raises CorruptEntry."""
    try:
        fields = orjson.loads(data)
        if not isinstance(fields, dict) or not fields.keys() <= set(Batch.__slots__):
            raise CorruptEntry("batch: not one")
        get = fields.get
        counts = [
            {str(name): int(count) for name, count in dict(get(field, ())).items()}
            for field in ("asked", "languages", "owners")
        ]
        batch = Batch(
            int(fields["requests"]),
            tuple(map(float, get("scores", ()))),
            tuple(
                Label(float(s), bool(w), float(h), bool(j), str(n), str(o)) for s, w, h, j, n, o in get("labels", ())
            ),
            tuple(Complaint(float(s), str(o), str(r)) for s, o, r in get("complaints", ())),
            counts[0],
            tuple(str(request) for request in get("withdrawn", ())),
            *counts[1:],
        )
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptEntry(f"batch: {error}") from None
    if (
        batch.requests < 0
        or not all(map(math.isfinite, batch.scores))
        or any(not math.isfinite(label.score) or label.weight < 1 for label in batch.labels)
        or not all(math.isfinite(one.score) for one in batch.complaints)
        or any(count < 0 for some in counts for count in some.values())
    ):
        raise CorruptEntry("batch: out of range")
    return batch
