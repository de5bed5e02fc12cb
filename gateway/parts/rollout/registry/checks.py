"""Check a policy before it is stored, against the deployment and the other surfaces, and files against the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.parts.lint.rules import faults
from gateway.parts.rollout.registry.records import InForce, Version
from gateway.parts.rollout.registry.registry import document_of
from policies.errors import ConfigError, InvalidContent, Problem
from policies.loader import DEFAULTS, PolicySource, Snapshot, policy_files, read_policy
from policies.model import Policy


def checked(
    file: Path, source: PolicySource, others: Iterable[Version], *, author: str, message: str, at: float
) -> tuple[Version, Policy]:
    """Return the policy in `file` as a version to apply, checked. Raises ConfigError with every problem.

    It must be free of faults, fit the deployment of `source`, and fit the `others` that are in force.
    """
    policy, document = read_policy(file, source.tiers)
    if problems := [document.locate(finding) for finding in faults(policy)]:
        raise InvalidContent(problems)
    pairs = [source.made(other.content, other.label) for other in others if other.surface != policy.surface]
    source.joined([*pairs, (policy, document)])
    return _version(policy, file, author, message, at), policy


def seeds(source: PolicySource, at: float) -> list[Version]:
    """Return the policies of the folder as the first versions of an empty registry. Raises ConfigError."""
    policies = source.load()
    versions = []
    for file in policy_files(source.directory):
        policy, _ = read_policy(file, source.tiers)
        if policy.surface not in policies.by_surface:
            continue  # written since
        versions.append(_version(policy, file, "files", f"seeded from {file.name}", at))
    return versions


def _version(policy: Policy, file: Path, author: str, message: str, at: float) -> Version:
    text, content = file.read_text(encoding="utf-8-sig"), dict(policy.content)
    document = document_of(text, content)
    return Version(policy.surface, policy.version, text, author, message, at, "", document, content)


@dataclass(slots=True)
class FileDrift:
    """Tell which policy files say something else than what is in force in the store; such files are never applied.

    Files are read again only when they have changed.
    """

    source: PolicySource
    _seen: Snapshot = field(default_factory=dict)
    _versions: dict[str, tuple[str, str] | str] = field(default_factory=dict)
    """Surface and version of each file by its name, or why it cannot be read."""

    def look(self, states: Mapping[str, InForce]) -> tuple[str, ...]:
        """Return one sentence for each file that differs."""
        seen = self.source.snapshot()
        if self._seen.get(DEFAULTS) != seen.get(DEFAULTS):
            self._versions.clear()
        for file in policy_files(self.source.directory):
            if self._seen.get(file.name) != seen.get(file.name) or file.name not in self._versions:
                self._versions[file.name] = self._read(file)
        for name in self._versions.keys() - seen.keys():
            del self._versions[name]
        self._seen = seen
        return tuple(drift for name in sorted(self._versions) if (drift := self._drift(name, states)))

    def _read(self, file: Path) -> tuple[str, str] | str:
        try:
            policy, _ = read_policy(file, self.source.tiers)
        except ConfigError as error:
            problem = error.problems[0]
            return str(Problem(Path(file.name), problem.line, problem.key, problem.message))
        return policy.surface, policy.version

    def _drift(self, name: str, states: Mapping[str, InForce]) -> str:
        found = self._versions[name]
        if isinstance(found, str):
            return f"{found} (the file is not in force)"
        surface, version = found
        state = states.get(surface)
        if state is not None and state.removed:
            return (
                f"{name}: {surface} was removed from the store; delete the file, or put it back by "
                f"`tierline policy apply {name} -m WHY`"
            )
        if state is None:
            return f"{name}: the store has no surface {surface}; `tierline policy apply {name} -m WHY` adds it"
        if version in (state.live, state.rolling and state.rolling.version):
            return ""
        return f"{name} says {surface}@{version[:7]}, but {surface}@{state.live[:7]} is in force"
