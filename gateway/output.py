"""Output discipline: the policy's limits on what a model may produce, laid over the client's body. Nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.model import Output


def effective_body(body: dict[str, Any], output: Output) -> tuple[Mapping[str, Any], bool]:
    """The body to send, and whether the token limit in it is the client's own choice rather than ours."""
    limit_key = next((key for key in ("max_completion_tokens", "max_tokens") if body.get(key) is not None), None)
    own_limit = limit_key is not None
    changes: dict[str, Any] = {}
    cap = output.max_tokens
    if cap is not None and (limit_key is None or body[limit_key] > cap):
        changes[limit_key or "max_completion_tokens"] = cap
        own_limit = False
    if output.stop:
        changes["stop"] = [*_listed(body.get("stop")), *output.stop]
    return ({**body, **changes} if changes else body), own_limit


def _listed(stop: object) -> list[Any]:
    if stop is None:
        return []
    return list(stop) if isinstance(stop, list) else [stop]
