"""Score texts by a classifier artefact as the gateway does, each text as a request of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from gateway.encoders import load_embedder
from gateway.parts.fit.embedding import Remembered
from gateway.report import OnProgress
from routing.difficulty.model import Difficulty, DifficultyModel, shipped_artefact
from routing.embedder import Embedder, EmbedderKind, EmbedderUnavailable
from routing.features import Features

_SHOWN_EVERY = 64


@dataclass(frozen=True, slots=True)
class ServedArtefact:
    """A loaded classifier artefact and the encoder it was made for."""

    folder: Path
    model: DifficultyModel
    embedder: Embedder

    @classmethod
    def open(cls, artefact: str, kind: EmbedderKind | None, state: Path) -> ServedArtefact:
        """Load an artefact, a folder or the kind of a shipped one. Raises ArtefactError, EmbedderUnavailable."""
        shipped = artefact in get_args(EmbedderKind)
        folder = shipped_artefact(cast(EmbedderKind, artefact)) if shipped else Path(artefact)
        embedder = _encoder(DifficultyModel.load(folder).embedder, kind, state)
        return cls(folder, DifficultyModel.load(folder, embedder), embedder)

    def assess(self, requests: Sequence[Features], on_progress: OnProgress) -> Iterator[Difficulty]:
        """Yield the difficulty of each request."""
        vectors = Remembered(self.embedder, on_progress).embed([request.text for request in requests])
        for row, (request, vector) in enumerate(zip(requests, vectors, strict=True)):
            if row % _SHOWN_EVERY == 0:
                on_progress("scoring", row, len(requests))
            yield self.model.assess(vector, request)
        on_progress("scoring", len(requests), len(requests))


def _encoder(name: str, kind: EmbedderKind | None, state: Path) -> Embedder:
    """Return the encoder of `kind`, or if that is None the one called `name`. Raises EmbedderUnavailable."""
    for candidate in get_args(EmbedderKind) if kind is None else (kind,):
        embedder = load_embedder(candidate, state)
        if kind is not None or embedder.name == name:
            return embedder
    raise EmbedderUnavailable(f"the artefact was made for {name!r} vectors, and no encoder here makes them")
