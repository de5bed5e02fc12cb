"""Define the config's `scorer`: a small model that says how likely an answer is right, from its text alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from pydantic import InstanceOf

from gateway.config.notations import Words
from gateway.config.resolver import Resolver
from gateway.config.schema import Deployment
from gateway.config.sections import Sections
from gateway.parts.agents.scorer import AnswerScorer
from routing.difficulty.model import ArtefactError


class ScorerSections(Sections):
    """The config's `scorer`."""

    scorer: Words = "none"
    """Scorer of answers without log-probabilities, which a policy's `escalate.verify` asks: the path of a file that
    `tierline fit train scorer` wrote, or `none`."""
    answer_scorer: InstanceOf[AnswerScorer] | None = None
    """The scorer that `scorer` names, read by the loader."""

    resolved: ClassVar[frozenset[str]] = frozenset({"answer_scorer"})

    @classmethod
    def resolve(cls, deployment: Deployment, resolver: Resolver) -> Mapping[str, object]:
        """Return the scorer, read from its file."""
        wanted = deployment.of(cls).scorer
        file = None if wanted == "none" else resolver.existing(("scorer",), Path(wanted))
        try:
            return {} if file is None else {"answer_scorer": AnswerScorer.load(file)}
        except ArtefactError as error:
            resolver.refuse(("scorer",), f"{error}; fit one with `tierline fit train scorer`, or say none")
            return {}


SECTIONS: Final = ScorerSections
