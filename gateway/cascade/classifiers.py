"""Hold the classifiers of one worker: the deployment's, and those that policies pin (`route.classifier`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from routing.difficulty.model import ArtefactError, DifficultyModel

if TYPE_CHECKING:
    from policies.model import Policy
    from routing.embedding.embedder import Embedder


class Classifiers:
    """Load classifiers when policies are loaded, each once, and find a policy's.

    A loaded one is kept as long as the worker lives: a request may still use a policy that is in force no more.
    """

    def __init__(self, default: DifficultyModel, embedder: Embedder) -> None:
        self.default = default
        self._embedder = embedder
        self._pinned: dict[str, DifficultyModel] = {}
        self._by_name: dict[str, DifficultyModel] = {}
        """By `route.classifier`, as far as it was asked for: a request need not take the name apart again."""

    def load(self, folder: Path, version: str) -> None:
        """Load the artefact whose hash begins so, unless it is there. Call it in a thread, it takes about 50 ms.

        Raises ValueError for an artefact that is missing, damaged, another, or of another encoder.
        """
        short = version[:12]
        if short in self._pinned:
            return
        try:
            model = DifficultyModel.load(folder, self._embedder)
        except ArtefactError as error:
            raise ValueError(str(error)) from None
        if model.version != short:
            raise ValueError(f"{folder} holds the classifier {model.version}, not {short}")
        self._pinned[short] = model

    def of(self, policy: Policy) -> DifficultyModel:
        """Return the classifier that rates this policy's requests."""
        name = policy.route.classifier
        found = self._by_name.get(name)
        if found is None:
            pinned = policy.route.pinned
            found = self._by_name[name] = self.default if pinned is None else self._pinned[pinned.version[:12]]
        return found
