"""Send what a backend's config and the policy set (`set`, `force`, `output.instruction`) with a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.backends.base import BackendRequest
from gateway.dialects.set_fields import instructed, with_changes
from gateway.telemetry import names
from routing.request_fields import changes_to, plan_of

if TYPE_CHECKING:
    from gateway.telemetry.trace import Hop
    from gateway.tiers import Endpoint
    from policies.fields import SetFields
    from policies.model import Policy

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
