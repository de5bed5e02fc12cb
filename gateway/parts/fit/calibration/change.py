"""Edit a policy file to the thresholds of a calibration, as a diff to review; the result is checked by loading it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from gateway.parts.fit.calibration.choose import Setting
from gateway.parts.fit.calibration.start import with_threshold
from gateway.parts.fit.calibration.traffic import LabelledSurface
from gateway.parts.fit.datasets import DataError
from gateway.parts.lint.edit import CannotEdit, source_of, with_value
from policies.loader import read_policy, version_of
from policies.model import Policy
from routing.confidence.judge import Basis

_WHEN = ("escalate", "when")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a policy file: its whole text before and after."""

    file: Path
    before: str
    after: str

    @property
    def diff(self) -> str:
        """A unified diff for `patch -p1` or `git apply`; empty if nothing changes."""
        name = Path(os.path.relpath(self.file)).as_posix()
        lines = self.before.splitlines(keepends=True), self.after.splitlines(keepends=True)
        return "".join(unified_diff(*lines, f"a/{name}", f"b/{name}"))

    def write(self) -> None:
        """Replace the file by the new text atomically. Raises OSError."""
        scratch = self.file.with_name(f".{self.file.name}.new")
        scratch.write_text(self.after, encoding="utf-8", newline="")
        scratch.chmod(self.file.stat().st_mode & 0o777)
        scratch.replace(self.file)


def key_for(basis: Basis) -> str:
    """Return the policy's threshold key for a confidence of this basis."""
    return "confidence_below" if basis == "calibrated" else "uncalibrated_below"


def change_to(surface: LabelledSurface, setting: Setting, basis: Basis) -> Change:
    """Return the change that sets `setting`, and the surface's new traffic if there is any, in the policy file.

    Raises DataError if its text cannot be edited.
    """
    before, after = _with_traffic(surface)
    key = key_for(basis)
    try:
        after = with_value(after, (*_WHEN, key), f"{setting.confidence_below:g}")
    except CannotEdit as error:
        raise DataError(f"{surface.file}: {error}") from None
    if setting.start is not None:
        where = ("route", "start", surface.tiers[0])
        rule = source_of(after, where)
        if rule is None:
            raise AssertionError("the loader has read this rule")
        after = with_value(after, where, with_threshold(rule, setting.start))
    change = Change(surface.file, before, after)
    _check(change, surface, _meant(surface, key, setting))
    return change


def change_of_traffic(surface: LabelledSurface) -> Change:
    """Return the change that sets the surface's new traffic alone. Raises DataError if the text cannot be edited."""
    change = Change(surface.file, *_with_traffic(surface))
    _check(change, surface, surface.policy)
    return change


def _with_traffic(surface: LabelledSurface) -> tuple[str, str]:
    """Return the policy file's text, and the same with the new `route.traffic`. Raises DataError."""
    before = surface.file.read_bytes().decode("utf-8-sig")
    traffic = surface.traffic
    if traffic is None:
        return before, before
    kinds = (f"      {kind}: [{', '.join(f'{at:g}' for at in deciles)}]" for kind, deciles in traffic.deciles.items())
    value = f'{{classifier: "{traffic.classifier}", deciles: {{\n' + ",\n".join(kinds) + "}}"
    try:
        return before, with_value(before, ("route", "traffic"), value)
    except CannotEdit as error:
        raise DataError(f"{surface.file}: {error}") from None


def _check(change: Change, surface: LabelledSurface, expected: Policy) -> None:
    """Load the edited text and check that only the intended values changed. Raises DataError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / surface.file.name
        file.write_text(change.after, encoding="utf-8", newline="")
        policy, _ = read_policy(file)
    if policy.version != version_of(expected, expected.content):
        raise DataError(f"{surface.file} is laid out in a way that cannot be edited automatically; edit it by hand")


def _meant(surface: LabelledSurface, key: str, setting: Setting) -> Policy:
    policy, tier = surface.policy, surface.tiers[0]
    when = policy.escalate.when.model_copy(update={key: setting.confidence_below})
    route = policy.route
    if setting.start is not None:
        route = route.model_copy(update={"start": {**route.start, tier: surface.rules.rule(setting.start)}})
    escalate = policy.escalate.model_copy(update={"when": when})
    return policy.model_copy(update={"escalate": escalate, "route": route})
