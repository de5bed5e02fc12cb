"""Find what of policies does not fit a deployment, and the names that more than one of them stands for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from policies.errors import Edit, Finding, KeyPath, Problem, did_you_mean
from policies.sections import all_added
from policies.wildcards import STAR, overlap, weight

if TYPE_CHECKING:
    from policies.model import Fits, Policy
    from policies.yaml_source import Document


def misfits(read: Sequence[tuple[Policy, Document]], fits: Fits) -> Iterator[Problem]:
    """Yield what of the policies does not fit the deployment."""
    for check in (*_CHECKS, *(part.misfits for part in all_added())):
        for policy, document in read:
            yield from map(document.locate, check(policy, fits))


def problems_together(read: Sequence[tuple[Policy, Document]]) -> list[Problem]:
    """Return a problem for each name that more than one of these policies stands for."""
    problems: list[Problem] = []
    names(read, problems)
    return problems


def _missing(what: str, name: str, known_names: Collection[str]) -> str:
    have = did_you_mean(name, known_names) or (f"; it has {', '.join(known_names)}" if known_names else "")
    return f"the deployment has no {what} {name!r}{have}"


def no_such(what: str, name: str, have: Collection[str], at: KeyPath, without: KeyPath, mend: str = "") -> Finding:
    """Return the finding that a `what` of this name does not exist, and its mend.

    That is the most similar name of `have`; without one, to delete the key at `without`, or what `mend` says.
    """
    near = get_close_matches(name, have, n=1)
    edit = Edit(at, near[0]) if near else Edit(without)
    return Finding(at, _missing(what, name, have), "T702", "" if near else mend, (edit,))


def _unknown_tiers(policy: Policy, fits: Fits) -> Iterator[Finding]:
    tiers = [tier.name for tier in fits.tiers]
    for i, tier in enumerate(policy.tiers):
        if tier not in tiers and tier not in policy.optional_tiers:
            near = next((name for name in get_close_matches(tier, tiers, n=1) if name not in policy.tiers), None)
            edits = (Edit(("tiers", i), near), Edit(("route", "start", tier), rename=near)) if near else ()
            yield Finding(("tiers", i), _missing("tier", tier, tiers), "T701", "", edits)
    for deployed in fits.tiers:
        if deployed.judges and deployed.name in policy.tiers:
            at = ("tiers", policy.tiers.index(deployed.name))
            message = f"tier {deployed.name!r} is of kind: decisions, which judges drafts and answers no requests"
            yield Finding(at, message, "T717", "leave it out, or name its backend in escalate.judge", (Edit(at),))


def _too_wide(policy: Policy, fits: Fits) -> Iterator[Finding]:
    """A cache may be as wide as what a key may see, and no wider."""
    if policy.cache.scope == "team" and (teamless := fits.teamless):
        who = f"tenant {teamless[0]!r} has" if len(teamless) == 1 else f"tenants {', '.join(teamless)} have"
        at = ("cache", "scope")
        mend = "name one under tenants, or say scope: tenant"
        yield Finding(at, f"{who} no team to share a cache with", "T704", mend, (Edit(at, "tenant"),))


def _out_of_reach(policy: Policy, fits: Fits) -> Iterator[Finding]:
    """Models that a semantic cache needs, and that the deployment does not have as it needs them."""
    semantic, at = policy.cache.semantic, ("cache", "semantic")
    if semantic is None:
        return
    here: KeyPath = (*at, "cross_encoder")
    if fits.cross_encoder == "none" and "cross_encoder" in semantic.model_fields_set:
        mend = "say default or the path of one there, or leave this out"
        yield Finding(here, "the config says cross_encoder: none", "T705", mend, (Edit(here),))
    if fits.cross_encoder == "unmeasured" and semantic.verify == "default" and semantic.cross_encoder.min_score is None:
        message = "the config's cross-encoder has no sheet.json that states its threshold"
        mend = "set cross_encoder: {min_score: ...} here (cache/README.md says how to measure it), or verify: fast"
        yield Finding(here, message, "T705", mend, (Edit((*at, "verify"), "fast"),))
    judge = semantic.audit_judge
    if judge is not None and judge.backend not in fits.backends:
        here = (*at, "audit_judge", "backend")
        yield no_such("backend", judge.backend, fits.backends, here, here[:-1])


_CHECKS: Final[Sequence[Callable[[Policy, Fits], Iterator[Finding]]]] = (
    _unknown_tiers,
    _too_wide,
    _out_of_reach,
)


def patterns(policies: Sequence[Policy]) -> list[tuple[str, Policy]]:
    """Return the names with wildcards that policies match, each with its policy, the most specific first."""
    wildcards = [(name, policy) for policy in policies for name in policy.match.models if STAR in name]
    return sorted(wildcards, key=lambda pair: weight(pair[0]), reverse=True)


def names(
    read: Sequence[tuple[Policy, Document]], problems: list[Problem]
) -> tuple[dict[str, Policy], dict[str, Policy]]:
    """Return the policies by the values of `model` and by those of the header that choose them.

    A name that two policies take is added to `problems`.
    """
    by_name: dict[str, Policy] = {}
    by_header: dict[str, Policy] = {}
    owner: dict[str, Document] = {}
    for policy, document in read:
        if policy.surface in by_name:
            first = owner[policy.surface].file.name
            message = (
                f"surface {policy.surface!r} is already in {first}; choose another name, or delete one of the files"
            )
            free = document.file.name.split(".")[0]
            edits = () if free in {policy.surface for policy, _ in read} else (Edit(("surface",), free),)
            problems.append(document.locate(Finding(("surface",), message, "T703", "", edits)))
        by_name.setdefault(policy.surface, policy)
        owner.setdefault(policy.surface, document)
    surfaces = dict(by_name)
    wild: dict[str, Policy] = {}
    for policy, document in read:
        named: list[tuple[KeyPath, str, dict[str, Policy]]] = [
            (("match", "models", i), name, by_name) for i, name in enumerate(policy.match.models)
        ]
        named += [(("match", "header", header), name, by_header) for header, name in policy.match.header.items()]
        for path, name, table in named:
            other = surfaces.get(name) or table.get(name)
            if other is not None and other is not policy:
                message = f"{name!r} already stands for the surface {other.surface!r}"
                problems.append(document.locate(Finding(path, message, "T703", "leave it out here", (Edit(path),))))
            table.setdefault(name, policy)
            if other is None and table is by_name and STAR in name:
                rival = next((at for at in wild if weight(at) == weight(name) and overlap(at, name)), None)
                if rival is not None and wild[rival] is not policy:
                    message = (
                        f"{name!r} and {rival!r} of the surface {wild[rival].surface!r} can match the same name, and "
                        "neither is more specific"
                    )
                    mend = "write more of the name, or leave it out here"
                    problems.append(document.locate(Finding(path, message, "T703", mend, (Edit(path),))))
                wild.setdefault(name, policy)
    return by_name, by_header
