"""Find the policy version that a request names to be tried with (`x-tierline-try`).

    live          the policy in force, without the canary's draw
    candidate     the version that is being tried beside it, in any mode
    VERSION       the version that begins with these hex digits; with policies from files that is the one in force

This may widen what the policy in force allows, so where there are tenants only those with `may_try` may send it. Such
a request has the arm `playground`: its cost counts, and no figure of the surface does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from cache.store.base import StoreUnavailable
from gateway.errors import Forbidden, InvalidRequest, NotFound, Overloaded, retry_after
from gateway.request.options import TRY

if TYPE_CHECKING:
    from gateway.caller import Caller
    from gateway.config.policy_reload import Policies
    from policies.model import Policy

_NAME: Final = TRY.decode()
_VERSION: Final = re.compile(r"[0-9a-f]{4,64}")


class NoSuchVersion(Exception):
    """There is no such version of a policy here, or it does not fit the deployment; the message says which."""


@runtime_checkable
class KeptVersions(Protocol):
    """Where policies come from, if it keeps versions that are not in force: the store does, files do not."""

    async def version(self, surface: str, prefix: str) -> Policy:
        """Return the version of a surface's policy that begins so. Raises NoSuchVersion and StoreUnavailable."""


async def tried(policies: Policies, headers: Mapping[bytes, bytes], caller: Caller, live: Policy) -> Policy:
    """Return the policy that the header names of the surface whose policy in force is `live`. Raises ApiError."""
    if caller.rights is not None and not caller.rights.may_try:
        whose = f"Key {caller.key!r}" if caller.key else f"Tenant {caller.tenant!r}"
        message = f"{whose} may not choose policy versions: its `may_try` is not true."
        raise Forbidden(message, code="try_not_allowed", param=_NAME)
    wanted = headers[TRY].decode("latin-1").strip().lower()
    if wanted == "live":
        return live
    if wanted == "candidate":
        rolling = policies.current.rolling.get(live.surface)
        if rolling is None:
            message = f"Surface {live.surface!r} has no candidate now."
            raise NotFound(message, code="version_not_found", param=_NAME)
        return rolling.policy
    if _VERSION.fullmatch(wanted) is None:
        message = f"{_NAME} is live, candidate, or the first 4 or more hex digits of a policy's version."
        raise InvalidRequest(message, code="unsupported_value", param=_NAME)
    try:
        if isinstance(policies, KeptVersions):
            return await policies.version(live.surface, wanted)
    except NoSuchVersion as error:
        raise NotFound(f"{error}.", code="version_not_found", param=_NAME) from None
    except StoreUnavailable as down:
        message = f"That version cannot be read now: the store does not answer ({down.reason})."
        raise Overloaded(message, headers=retry_after(1)) from None
    if not live.version.startswith(wanted):
        raise NotFound(
            f"{live.surface} has no version {wanted!r} here; policies come from files, which keep the one in force "
            f"alone ({live.label}). With `policies: {{source: store}}` every version that was applied is kept.",
            code="version_not_found",
            param=_NAME,
        )
    return live
