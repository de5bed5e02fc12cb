"""Show the registry as plain JSON values: the same for the commands' `--json` and the admin API."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from difflib import SequenceMatcher
from typing import Any

from gateway.parts.lint.edit import keys_by_line
from gateway.parts.rollout.policy import RolloutSections
from gateway.parts.rollout.registry.records import AuditEntry, InForce, Replica, Version
from gateway.parts.rollout.registry.registry import PolicyRegistry, RegistryError
from policies.errors import ConfigError


async def status_of(registry: PolicyRegistry, surface: str | None = None) -> dict[str, Any]:
    """Return what is in force on each surface or one, what is being tried, and which workers differ.

    Raises RegistryError for an unknown surface.
    """
    states = [await registry.surface(surface)] if surface is not None else list((await registry.in_force()).values())
    documents = await registry.documents(states)
    replicas, reports = await registry.replicas(), await registry.reports()
    removed = {name for name, state in (await registry.states()).items() if state.removed}
    latest = {entry.surface: _change(entry) for entry in await registry.latest()}
    return {
        "surfaces": [
            {**_surface(state, documents, replicas, reports.get(state.surface)), "last": latest.get(state.surface)}
            for state in states
        ],
        "replicas": [_replica(replica, removed) for replica in replicas],
        "drift": sorted({drift for replica in replicas for drift in replica.drift}),
    }


async def history_of(registry: PolicyRegistry, surface: str | None = None) -> list[dict[str, Any]]:
    """Return the changes of one surface or of all, newest first. Raises RegistryError for an unknown surface."""
    if surface is not None:
        await registry.surface(surface, removed=True)
    return [_change(entry) for entry in reversed(await registry.history(surface))]


async def shown_version(registry: PolicyRegistry, surface: str, prefix: str = "") -> dict[str, Any]:
    """Return a version with its text, the one in force without a `prefix`. Raises RegistryError."""
    state = await registry.surface(surface, removed=bool(prefix))
    version = await registry.version(surface, prefix or state.live)
    candidate = state.rolling is not None and state.rolling.version == version.version
    where = "in force" if version.version == state.live else "being tried" if candidate else "not in force"
    return {**_version(version), "state": where, "parent": version.parent, "text": version.text}


async def blamed(registry: PolicyRegistry, surface: str, prefix: str = "") -> dict[str, Any]:
    """Return each line of a policy with its key, and the version that set it: of the one in force without a `prefix`.

    What was rolled back has set nothing, except in a version that was rolled back itself. Raises RegistryError.
    """
    state = await registry.surface(surface, removed=bool(prefix))
    wanted = await registry.version(surface, prefix) if prefix else None
    versions = {version.document: version for version in await registry.versions(surface)}
    if wanted is not None:
        versions[wanted.document] = wanted
    succession = [entry.document for entry in await registry.succession(surface) if entry.document in versions]
    if wanted is not None:
        until = [place for place, document in enumerate(succession) if versions[document].version == wanted.version]
        # One that was only tried, or taken back, is held against what is in force.
        succession = succession[: until[-1] + 1] if until else [*succession, wanted.document]
    lines: list[str] = []
    by: list[Version] = []
    for document in succession:
        setter = versions[document]
        new = setter.text.splitlines()
        blame: list[Version] = []
        for tag, low, high, new_low, new_high in SequenceMatcher(None, lines, new, autojunk=False).get_opcodes():
            blame += by[low:high] if tag == "equal" else [setter] * (new_high - new_low)
        lines, by = new, blame
    version = state.live if wanted is None else wanted.version
    if not lines:
        raise RegistryError(f"the text of {surface}@{version[:7]} is not in the store")
    keys = keys_by_line("\n".join(lines))
    return {
        "surface": surface,
        "version": version,
        "lines": [
            {
                "line": number,
                "text": text,
                "key": keys.get(number, ""),
                "version": setter.version,
                "author": setter.author,
                "message": setter.message,
                "at": setter.at,
            }
            for number, (text, setter) in enumerate(zip(lines, by, strict=True), start=1)
        ],
    }


def in_force_shown(state: InForce) -> dict[str, Any]:
    """Return the outcome of a change: what is in force and what is being tried."""
    rolling = state.rolling
    return {
        "surface": state.surface,
        "version": state.live,
        "policy": None if state.removed else f"{state.surface}@{state.live[:7]}",
        "removed": state.removed,
        "revision": state.revision,
        "since": state.since,
        "frozen": state.frozen,
        "candidate": None
        if rolling is None
        else {"policy": f"{state.surface}@{rolling.version[:7]}", **rolling.shown()},
    }


def _surface(
    state: InForce,
    documents: Mapping[str, Version],
    replicas: Sequence[Replica],
    report: Mapping[str, Any] | None,
) -> dict[str, Any]:
    shown = in_force_shown(state)
    live = documents.get(state.document)
    applied = {} if live is None else {"author": live.author, "message": live.message, "at": live.at}
    if state.rolling is not None:
        candidate = documents.get(state.rolling.document)
        if candidate is not None:
            shown["candidate"] |= {
                "author": candidate.author,
                "message": candidate.message,
                "steps": _steps(candidate),
            }
        about = report is not None and report.get("version", state.rolling.version) == state.rolling.version
        shown["candidate"]["report"] = report if about else None
    lagging = [replica.name for replica in replicas if replica.surfaces.get(state.surface) != state.live]
    return {**shown, **applied, "replicas": {"in_force": len(replicas) - len(lagging), "lagging": lagging}}


def _steps(candidate: Version) -> list[float]:
    """Return the shares of a candidate's rollout; none if it has no such section."""
    try:
        rollout = candidate.policy().of(RolloutSections).rollout
    except ConfigError:
        return []
    return [] if rollout is None else list(rollout.steps)


def _version(version: Version) -> dict[str, Any]:
    return {
        "surface": version.surface,
        "version": version.version,
        "policy": version.label,
        "author": version.author,
        "message": version.message,
        "at": version.at,
    }


def _change(entry: AuditEntry) -> dict[str, Any]:
    fields = asdict(entry)
    return {name: fields[name] for name in fields if name not in ("document", "state")}


def _replica(replica: Replica, removed: Collection[str]) -> dict[str, Any]:
    return {
        "name": replica.name,
        "revision": replica.revision,
        "problem": replica.problem,
        "drift": replica.drift,
        "still_has": sorted(replica.surfaces.keys() & set(removed)),
    }
