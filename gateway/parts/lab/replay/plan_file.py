"""Write a plan to a file and read it again: a policy change with all that was found out about it.

A plan is bound to what it was made from: the policy in force, the artefacts that classify and judge, and the prices.
Where one of these has moved, its figures are of something else: `why_stale` says what has moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

VERSION: Final = 1
_KIND: Final = "tierline policy plan"


class PlanError(ValueError):
    """A file is not a plan, or is one of another version of Tierline."""


@dataclass(frozen=True, slots=True)
class BoundTo:
    """What a plan's figures hold for. `base` is the version in force, 64 hex digits; '' for a new surface."""

    base: str
    artefacts: Mapping[str, str]
    """Version of each artefact, by what it is, such as `classifier`."""
    prices: str
    """Hash of the prices of the deployment's backends."""


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """A plan. `text` is the candidate's file as it was written, `version` its hash; the parts are JSON values."""

    surface: str
    file: str
    text: str
    version: str
    bound: BoundTo
    made_s: float
    """Unix seconds at which it was made."""
    lint: Mapping[str, Any] = field(default_factory=dict)
    tests: Mapping[str, Any] | None = None
    """None where the policy has no test file."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    replay: Mapping[str, Any] | None = None
    """None where nothing is recorded."""
    canary: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        """`surface@version` of the candidate."""
        return f"{self.surface}@{self.version[:7]}"


def plan_as_json(plan: PolicyPlan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {"kind": _KIND, "v": VERSION, **asdict(plan)}


def write_plan(file: Path, plan: PolicyPlan) -> None:
    """Write a plan. Raises OSError."""
    draft = file.with_name(f".{file.name}.draft")
    try:
        draft.write_bytes(orjson.dumps(plan_as_json(plan), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def read_plan(file: Path) -> PolicyPlan:
    """Return the plan in a file. Raises OSError and PlanError."""
    try:
        values = orjson.loads(file.read_bytes())
        if values.pop("kind") != _KIND:
            raise PlanError(f"{file} is no plan; `tierline policy plan FILE --out {file.name}` writes one")
        if (version := values.pop("v")) != VERSION:
            raise PlanError(f"{file} is a plan of format {version}; this version of Tierline reads {VERSION}")
        return PolicyPlan(**{**values, "bound": BoundTo(**values["bound"])})
    except PlanError:
        raise
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(
            f"{file} is no plan ({error}); `tierline policy plan FILE --out {file.name}` writes one"
        ) from None


def why_stale(plan: PolicyPlan, now: BoundTo) -> list[str]:
    """Return what has moved since the plan was made, a clause each; none if its figures still hold."""
    moved = []
    bound, surface = plan.bound, plan.surface
    if bound.base != now.base:
        moved.append(f"the policy in force was {_policy(surface, bound.base)} and is {_policy(surface, now.base)}")
    for name in sorted({*bound.artefacts, *now.artefacts}):
        was, is_ = bound.artefacts.get(name, ""), now.artefacts.get(name, "")
        if was != is_:
            moved.append(f"the {name} was {was or 'not there'} and is {is_ or 'not there'}")
    if bound.prices != now.prices:
        moved.append("the prices of the backends have changed")
    return moved


def _policy(surface: str, version: str) -> str:
    return f"{surface}@{version[:7]}" if version else "none"
