"""Lay the policy's limits on what a model may produce over a client's body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from policies.model import Output

_TOKEN_LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""Token limits of a request: OpenAI's API prefers the first; many other servers support only the second."""


def effective_body(body: dict[str, Any], output: Output) -> tuple[Mapping[str, Any], bool]:
    """Return the body to send, and whether its token limit is the client's own rather than the policy's."""
    limited = not body.keys().isdisjoint(_TOKEN_LIMITS)
    given = {key: body[key] for key in _TOKEN_LIMITS if body.get(key) is not None} if limited else {}
    cap = output.max_tokens
    # Backends differ in which of two limits they use, so both are capped; the smaller is taken as the client's.
    own_limit = bool(given) and (cap is None or min(given.values()) <= cap)
    changes: dict[str, Any] = {}
    if cap is not None:
        changes = {key: cap for key, limit in given.items() if limit > cap} if given else {_TOKEN_LIMITS[0]: cap}
    if output.stop:
        changes["stop"] = [*_listed(body.get("stop")), *output.stop]
    return ({**body, **changes} if changes else body), own_limit


def within(body: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """Return the body with its token limits lowered to `most`; the body itself if none is above it."""
    lowered = {key: most for key in _TOKEN_LIMITS if (limit := body.get(key)) is not None and limit > most}
    return {**body, **lowered} if lowered else body


def limit_of(body: Mapping[str, Any]) -> int | None:
    """Return the token limit of a body, the smaller of two; None if it has none."""
    return min([limit for key in _TOKEN_LIMITS if (limit := body.get(key)) is not None], default=None)


def limited(body: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """Return the body with a token limit of at most `most`, added where it has none."""
    return within(body, most) if limit_of(body) is not None else {**body, _TOKEN_LIMITS[0]: most}


def _listed(stop: object) -> list[Any]:
    if stop is None:
        return []
    return list(stop) if isinstance(stop, list) else [stop]
