"""Put the model of policies together: the sections of `policies.model`, and those that somebody above adds.

A part of the gateway that lists `policy_sections` in `gateway.parts.standard` has a module `policy`. Its `SECTIONS` is
a class of its own, a `PolicySections`, whose fields are these sections, and which says what else they mean to policies.
They are read by that class: `policy.of(AgentSections).session`, of the part agents. Without anybody above, policies
have the sections of the model.

A section that was added is left out of a policy's version where it has its default: the policy is the same without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar, Self, TypeVar, cast

from pydantic import create_model, model_validator

from policies import ADDED
from policies.errors import Finding
from policies.model import Fits, Policy, Rules
from policies.validation import Section, raise_findings

R = TypeVar("R", bound=Rules)


class PolicySections(Section):
    """Sections that are added to policies. Each method says nothing unless a class has its own."""

    unversioned: ClassVar[frozenset[str]] = frozenset()
    """Those that change no answer, and so are no part of a policy's version."""
    aside: ClassVar[frozenset[str]] = frozenset()
    """Those whose change changes nothing that is in force."""
    of_answers: ClassVar[frozenset[str]] = frozenset()
    """Those that a stored answer is bound to, where they have another value than their default."""

    @classmethod
    def check(cls, rules: Rules) -> Iterator[Finding]:
        """Yield what is wrong between these and other sections, once each is valid: the policy does not load."""
        yield from ()

    @classmethod
    def faults(cls, rules: Rules) -> Iterator[Finding]:
        """Yield mistakes in these sections that are certain, though the policy loads."""
        yield from ()

    @classmethod
    def lint(cls, rules: Rules) -> Iterator[Finding]:
        """Yield what is doubtful in these sections: allowed, but probably not meant."""
        yield from ()

    @classmethod
    def doubts(cls, rules: Rules, source: str) -> Iterator[Finding]:
        """Yield what a deployment cannot carry out whose policies come from `source`: files, or the store."""
        yield from ()

    @classmethod
    def misfits(cls, policy: Policy, fits: Fits) -> Iterator[Finding]:
        """Yield what these sections name that the deployment does not have."""
        yield from ()

    @classmethod
    def describe(cls, policy: Rules) -> Iterator[tuple[str, str]]:
        """Yield sections by their names, each with a sentence of what it does to a request."""
        yield from ()

    @classmethod
    def scopes(cls, policy: Rules) -> int:
        """Return how many scopes of the store a tenant has on this surface, beside that of its answers."""
        return 0

    @classmethod
    def without_tiers(cls, rules: Rules, tiers: Sequence[str]) -> Mapping[str, object]:
        """Return, by name, the sections that change where a policy has these of its tiers alone."""
        return {}

    @classmethod
    def labels(cls, rules: Rules) -> bool:
        """Return whether somebody labels answers of this policy, so that a share is held out by default."""
        return False


def all_added() -> tuple[type[PolicySections], ...]:
    """Return the classes of the sections that are added."""
    return cast("tuple[type[PolicySections], ...]", ADDED.find())


def rules_model() -> type[Rules]:
    """Return the model of a policy file: `Rules` with the sections that are added."""
    return _whole(Rules, all_added())


def policy_model() -> type[Policy]:
    """Return the model of a policy in a deployment: `Policy` with the sections that are added."""
    return _whole(Policy, all_added())


class _Checked(Section):
    @model_validator(mode="after")
    def _added_sections_agree(self) -> Self:
        rules = cast("Rules", self)
        raise_findings(finding for part in all_added() for finding in part.check(rules))
        return self


@cache
def _whole(core: type[R], added: tuple[type[PolicySections], ...]) -> type[R]:
    bases = (_Checked, *reversed(added), core)  # pydantic takes the fields of the last base first
    return create_model(core.__name__, __base__=cast("tuple[type[R], ...]", bases), __doc__=core.__doc__)
