"""Write the demo's policies into its state folder: the shipped ones, adjusted, and a candidate for a canary."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from gateway.parts.lint.edit import with_value
from policies.loader import SHIPPED

_ADJUSTMENTS: Final = Path(__file__).with_name("adjustments.yaml")


@dataclass(frozen=True, slots=True)
class DemoPolicies:
    """The folder of policies, and the candidate: its file, its surface, and why it is tried."""

    folder: Path
    candidate: Path
    surface: str
    message: str


def write_policies(state: Path) -> DemoPolicies:
    """Write policies into `state/policies`, in place of what is there, and the candidate into `state/candidate`."""
    adjustments = yaml.safe_load(_ADJUSTMENTS.read_text(encoding="utf-8"))
    folder, tried = state / "policies", state / "candidate"
    for made in (folder, tried):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
    for shipped in sorted(SHIPPED.glob("*.yaml")):
        if not shipped.name.endswith(".test.yaml"):
            text = shipped.read_text(encoding="utf-8")
            text = _edited(text, adjustments["policies"].get(shipped.stem, {}))
            (folder / shipped.name).write_text(text, encoding="utf-8")
    if (SHIPPED / "prompts").is_dir():
        shutil.copytree(SHIPPED / "prompts", folder / "prompts")
        shutil.copytree(SHIPPED / "prompts", tried / "prompts")
    canary = adjustments["canary"]
    candidate = tried / f"{canary['surface']}.yaml"
    live = (folder / candidate.name).read_text(encoding="utf-8")
    candidate.write_text(_edited(live, canary["change"]) + canary["rollout"], encoding="utf-8")
    return DemoPolicies(folder, candidate, canary["surface"], canary["message"])


def _edited(text: str, changes: dict[str, str]) -> str:
    for key, value in changes.items():
        text = with_value(text, tuple(key.split(".")), value)
    return text
