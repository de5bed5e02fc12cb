"""Apply the policy's output limits (tokens, stop strings) to a client's body; nothing else in it is changed."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from policies.model import Output

_TOKEN_LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""OpenAI's API uses the first; many other servers know only the second."""


def effective_body(body: dict[str, Any], output: Output) -> tuple[Mapping[str, Any], bool]:
    """Return the body to send, and whether its token limit is the client's own rather than the policy's."""
    given = {key: body[key] for key in _TOKEN_LIMITS if body.get(key) is not None}
    cap = output.max_tokens
    # Backends differ in which of two limits they use, so both are capped; the smaller is taken as the client's.
    own_limit = bool(given) and (cap is None or min(given.values()) <= cap)
    changes: dict[str, Any] = {}
    if cap is not None:
        changes = {key: cap for key, limit in given.items() if limit > cap} if given else {_TOKEN_LIMITS[0]: cap}
    if output.stop:
        changes["stop"] = [*_listed(body.get("stop")), *output.stop]
    return ({**body, **changes} if changes else body), own_limit


def _listed(stop: object) -> list[Any]:
    if stop is None:
        return []
    return list(stop) if isinstance(stop, list) else [stop]


def namespaced(body: Mapping[str, Any], tenant: str) -> Mapping[str, Any]:
    """Return the body with its `prompt_cache_key` hashed with the tenant, so that tenants share no prompt cache."""
    key = body["prompt_cache_key"]
    if not isinstance(key, str):
        return body
    named = sha256(b"%d:%s%s" % (len(tenant), tenant.encode(), key.encode("utf-8", "surrogatepass"))).hexdigest()
    return {**body, "prompt_cache_key": f"tl-{named[:32]}"}
