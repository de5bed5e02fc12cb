"""Send what a backend's config and the policy set (`set`, `force`, `output.instruction`) with a call.

A field is set at two levels: at the backend in the config, and for a tier in the policy, which counts first. What is
forced is sent; else what the client gives; else what is set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.backends.base import BackendRequest
from gateway.dialects.native import instructed, with_changes
from gateway.telemetry import names
from policies.fields import REASONING, is_bound
from policies.value_type import value_type

if TYPE_CHECKING:
    from gateway.telemetry.trace import Hop
    from gateway.tiers import Endpoint
    from policies.fields import SetFields
    from policies.model import Policy


@value_type
class FieldPlan:
    """The fields that the config and the policy together set in one call.

    `opens` are values of fields that the client left open, `forced` those that replace the client's, `bounds` limits.
    """

    opens: Mapping[str, Any]
    forced: Mapping[str, Any]
    bounds: Mapping[str, Mapping[str, float]]


def plan_of(levels: Iterable[SetFields]) -> FieldPlan:
    """Merge the fields that several levels set; a later level, which is more specific, has precedence."""
    opens: dict[str, Any] = {}
    forced: dict[str, Any] = {}
    bounds: dict[str, Mapping[str, float]] = {}
    for level in levels:
        for own, given in (opens, level.set), (forced, level.force):
            values = {name: value for name, value in given.items() if not is_bound(value)}
            if not REASONING.isdisjoint(values):
                for name in REASONING & own.keys():
                    del own[name]
            own.update(values)
            bounds.update((name, value) for name, value in given.items() if is_bound(value))
    return FieldPlan(opens, forced, bounds)


def changes_to(body: Mapping[str, Any], plan: FieldPlan, given: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a body that are sent otherwise, by name; None for one that is left out.

    `given` names fields that the client gave in another API's words, and that are no part of the body.
    """
    closed = {name for name, value in body.items() if value is not None}
    if not REASONING.isdisjoint(closed):
        closed |= REASONING
    closed.update(given)
    sent = {name: value for name, value in plan.opens.items() if name not in closed}
    for name, bound in plan.bounds.items():
        value = sent.get(name, body.get(name))
        limit = _within(value, bound)
        if limit is not None and limit != value:
            sent[name] = limit
    if not REASONING.isdisjoint(plan.forced):
        for name in REASONING:
            sent.pop(name, None)
            if name in closed:
                sent[name] = None
    sent.update(plan.forced)
    return {
        name: value
        for name, value in sent.items()
        if value != body.get(name) or (name in given and name in plan.forced)
    }


def _within(value: Any, bound: Mapping[str, float]) -> float | None:
    """Return a number within the bounds; for a field that nobody gives the highest, since nobody knows its default."""
    least, most = bound.get("at_least"), bound.get("at_most")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return most if value is None else None
    if most is not None and value > most:
        return most
    return least if least is not None and value < least else None


_LONGEST_SHOWN: Final = 120


def with_set_fields(
    asked: BackendRequest, endpoint: Endpoint, policy: Policy | None = None, hop: Hop | None = None
) -> BackendRequest:
    """Return a request to this backend with the fields that are set; the request itself if none is.

    Without a policy it is the gateway's own request. What is sent otherwise is noted on `hop`.
    """
    config = endpoint.config
    if not config.sets_fields and (policy is None or not policy.sets_fields):
        return asked
    levels: list[SetFields] = [config]
    instruction = ""
    if policy is not None:
        levels += [policy.tier_fields[endpoint.tier]] if endpoint.tier in policy.tier_fields else []
        instruction = policy.output.instruction
    native = asked.native
    changes = changes_to(asked.body, plan_of(levels), frozenset() if native is None else native.given)
    for name in config.not_settable:  # the model refuses it
        changes.pop(name, None)
    body: Mapping[str, Any] = with_changes(asked.body, changes) if changes else asked.body
    if native is not None and native.dialect == config.dialect:
        native = replace(native, body=config.with_fields(native.body, changes, instruction))
    elif instruction:
        body, native = instructed(body, native, instruction)
    if hop is not None:
        if changes:
            hop.attributes[names.FIELDS] = tuple(f"{name}={_shown(value)}" for name, value in changes.items())
        if instruction:
            hop.attributes[names.INSTRUCTION] = instruction
    return replace(asked, body=body, native=native)


def _shown(value: Any) -> str:
    """Return a value as a person writes it; `none` for a field that is not sent."""
    if value is None:
        return "none"
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
