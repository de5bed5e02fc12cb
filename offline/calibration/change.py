"""Edit a policy file to the thresholds of a calibration, as a diff to review; the result is checked by loading it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from offline.calibration.choose import Setting
from offline.calibration.start import with_threshold
from offline.calibration.traffic import LabelledSurface
from offline.datasets import DataError
from policies.edit import CannotEdit, source_of, with_value
from policies.loader import read_policy, version_of
from policies.model import Policy
from routing.confidence.judge import Basis

_WHEN = ("escalate", "when")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a policy file: its whole text before and after, and the key of the confidence threshold set."""

    file: Path
    before: str
    after: str
    key: str

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
    """Return the change that sets `setting` in the policy file. Raises DataError if its text cannot be edited."""
    before = surface.file.read_bytes().decode("utf-8-sig")
    key = key_for(basis)
    try:
        after = with_value(before, (*_WHEN, key), f"{setting.confidence_below:g}")
    except CannotEdit as error:
        raise DataError(f"{surface.file}: {error}") from None
    if setting.p_adequate is not None:
        where = ("route", "start", surface.tiers[0])
        rule = source_of(after, where)
        if rule is None:
            raise AssertionError("the loader has read this rule")
        after = with_value(after, where, with_threshold(rule, setting.p_adequate))
    change = Change(surface.file, before, after, key)
    _check(change, surface, setting)
    return change


def _check(change: Change, surface: LabelledSurface, setting: Setting) -> None:
    """Load the edited text and check that only the intended values changed. Raises DataError."""
    expected = _meant(surface, change.key, setting)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / surface.file.name
        file.write_text(change.after, encoding="utf-8", newline="")
        policy, _ = read_policy(file)
    if policy.version != version_of(expected):
        raise DataError(f"{surface.file} is laid out in a way that cannot be edited automatically; edit it by hand")


def _meant(surface: LabelledSurface, key: str, setting: Setting) -> Policy:
    policy, tier = surface.policy, surface.tiers[0]
    when = policy.escalate.when.model_copy(update={key: setting.confidence_below})
    route = policy.route
    if setting.p_adequate is not None:
        route = route.model_copy(update={"start": {**route.start, tier: surface.rules.rule(setting.p_adequate)}})
    escalate = policy.escalate.model_copy(update={"when": when})
    return policy.model_copy(update={"escalate": escalate, "route": route})
