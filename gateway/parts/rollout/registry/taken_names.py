"""Find names of models that a policy would take from surfaces whose policies its author may not change.

A name leads to the surface that has it as it is, else to the one with the most specific wildcard that matches it. So a
policy that adds `gpt-4o`, or `gpt-4*`, takes these from another one's `gpt-*`, and no line of that one has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from policies.model import Policy
from policies.wildcards import STAR, overlap, weight


def taken_names(
    policy: Policy, before: Policy | None, others: Iterable[Policy], may_change: Callable[[str], bool]
) -> Mapping[str, str]:
    """Return the names that `policy` has, and `before` it had not, with the surface that loses them.

    Surfaces that the author `may_change` do not count: who may edit both may move names between them.
    """
    new = {*policy.match.models, policy.surface}.difference(
        () if before is None else (*before.match.models, before.surface)
    )
    return {
        name: other.surface
        for other in others
        if other.surface != policy.surface and not may_change(other.surface)
        for theirs in other.match.models
        for name in sorted(new)
        if _takes(name, theirs)
    }


def _takes(name: str, theirs: str) -> bool:
    """Return whether some name that a wildcard of another surface matches leads to `name` from now on."""
    stronger = STAR not in name or weight(name) >= weight(theirs)
    return STAR in theirs and stronger and overlap(name, theirs)
