"""Say who sends a request, and ask what their requests may use, whoever decides that (`gateway.seams`).

Where nobody needs a key, `LoopbackGuard` refuses what web pages send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.config.addresses import is_loopback
from gateway.config.schema import DEFAULT_TENANT
from gateway.errors import Forbidden
from policies.value_type import value_type

if TYPE_CHECKING:
    from gateway.config.schema import Deployment
    from gateway.errors import Forbidden
    from policies.loader import PolicySet
    from policies.model import Policy
    from routing.decide import Clamp


ModelsByTier = Mapping[str, frozenset[str]]
"""The models of the backends of each tier, by the tier's name."""
_BEARER: Final = b"bearer "


@value_type
class OpenModels:
    """The models that may answer a request, for each tier of its policy, of a caller that not all of them are open to.

    `partly` are the tiers that are open to some of their models alone.
    """

    by_tier: ModelsByTier
    partly: frozenset[str]

    @property
    def tiers(self) -> tuple[str, ...]:
        """Tiers with a model that may answer."""
        return tuple(name for name, models in self.by_tier.items() if models)

    @property
    def text(self) -> str:
        """A text that is equal for callers to whom the same models are open, as a part of cache keys."""
        return ";".join(f"{name}={','.join(sorted(models))}" for name, models in self.by_tier.items())


class Rights(Protocol):
    """What a caller may use: surfaces, models and services. `ladder`, in its methods, has a policy's models by tier."""

    @property
    def may_try(self) -> bool:
        """Whether the caller may name the policy version that answers (`x-tierline-try`)."""

    @property
    def some_models(self) -> bool:
        """Whether the caller is limited to some models."""

    def choose(self, policies: PolicySet, name: str, surface: str | None) -> Policy | None:
        """Return the policy that a request chooses: by the `surface` that it names, or else by the `name` in `model`.

        None if there is no such policy. Raises Forbidden where the caller may not use it.
        """

    def opens(self, policy: Policy, policies: PolicySet, ladder: ModelsByTier) -> bool:
        """Return whether the caller may use a surface, and at least one of the models that answer there."""

    def open_models(self, policy: Policy, policies: PolicySet, ladder: ModelsByTier) -> OpenModels | None:
        """Return the models of the surface that may answer the caller; None where all may."""

    def clamp(self, policy: Policy, least: str | None, most: str | None, models: OpenModels | None) -> Clamp | None:
        """Return the tiers from `least` to `most` (names; None for an open end) that may answer; None if all may.

        Raises Forbidden where the caller may use none of them.
        """

    def check_fields(self, body: Mapping[str, Any]) -> None:
        """Raise Forbidden for a body that asks a server for further models, where some alone may answer."""

    def check_model(
        self, policy: Policy, policies: PolicySet, ladder: ModelsByTier, *, asked: str, answers: str
    ) -> None:
        """Raise Forbidden unless the model of a service may answer.

        `asked` is how the client names it: a surface, a name that the service's config maps to `answers`, or `answers`.
        """

    def may_call(self, service: str) -> bool:
        """Return whether requests of this caller may be passed on to a service, by its name in the config."""

    def check_service(self, service: str, endpoint: str) -> None:
        """Raise Forbidden unless a service may answer at an endpoint."""

    def not_open(self, what: str, param: str = "model") -> Forbidden:
        """Return the error for `what`, an API or a service that a caller limited to some models may not use."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request; made once per key and kept, so it holds nothing of one request."""

    tenant: str = DEFAULT_TENANT
    team: str = ""
    key: str = ""
    """Id of the key in the store, or of the identity; empty for a tenant's static key and without keys."""
    rights: Rights | None = None
    """What its requests may use; None for everything."""
    is_limited: bool = False
    """Whether its requests count against limits."""
    owner: str = field(init=False, repr=False, compare=False)
    """Whose kept answers its requests may see: `TENANT/TEAM` for a team within a tenant, else the tenant.

    Neither name has a slash. A team of the config is one of tenants, so that it divides none.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", f"{self.tenant}/{self.team}" if self.team and self.key else self.tenant)

    @property
    def sender(self) -> str:
        """Who shares what a worker has room for: the key, else the tenant; empty where nobody needs a key."""
        return self.key or ("" if self is ANYBODY else f"tenant:{self.tenant}")


ANYBODY: Final = Caller()
"""The caller of a gateway that requires no key."""


class Everybody:
    """The `Authenticator` of a gateway without one: no key is required, and none is looked at."""

    notes: Final = ()

    def known(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the one caller that there is."""
        return ANYBODY

    async def find(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the one caller that there is."""
        return ANYBODY

    async def is_operator(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return True: whoever may send requests may see how the gateway does."""
        return True

    def watch(self, files: object) -> None:
        """Do nothing."""

    async def start(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


def bearer_key(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the key of a request, as a bearer token or else in `x-api-key`; empty if there is none."""
    value = headers.get(b"authorization", b"")
    key = value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""
    return key or headers.get(b"x-api-key", b"").strip()


def in_tenants_space(owner: str, name: str) -> str:
    """Return the name sent to a provider for a client's `name`: a hash with its owner, so no two owners share it."""
    named = b"%d:%s%s" % (len(owner), owner.encode(), name.encode("utf-8", "surrogatepass"))
    return f"tl-{sha256(named).hexdigest()[:32]}"


_TO_ALLOW: Final = "access.hosts in its config allows further names, and with tenants any name is accepted"
_MOST_HOSTS: Final = 64


class LoopbackGuard:
    """Refuse requests of web pages to a gateway that requires no key because it listens on loopback.

    Any page open in a browser on this machine can send requests to 127.0.0.1, or to a name of its own that resolves to
    it (DNS rebinding), and would spend the gateway's keys. The browser sends both names, in `Host` and `Origin`, and
    pages cannot change those.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.active = deployment.keyless and is_loopback(deployment.host)
        """Whether requests are checked. If not, each needs a key, or the config has `access: {keyless: true}`."""
        self._names = frozenset(deployment.access.hosts)
        self._pages = deployment.access.cors_pattern
        self._allowed: dict[bytes, bool] = {}

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Forbidden if the Host is not a name of this machine, or the Origin is another site."""
        if not self.active:
            return
        host = headers.get(b"host")
        if host is not None and not (self._allowed.get(host) or self._allows(host)):
            message = f"This gateway requires no key, so it only accepts names of this machine in Host; {_TO_ALLOW}."
            raise Forbidden(message)
        origin = headers.get(b"origin")
        if origin is None or (self._pages is not None and self._pages.fullmatch(origin.decode("latin-1"))):
            return
        if not self._allows(origin.partition(b"://")[2]):
            message = (
                f"This gateway requires no key, so pages of other sites may not use it; {_TO_ALLOW}, and access.cors "
                "lets pages and desktop applications in by their origin."
            )
            raise Forbidden(message, code="origin_not_allowed")

    def _allows(self, authority: bytes) -> bool:
        """Return whether `authority`, a name or address with or without a port, is loopback or in `access.hosts`."""
        text = authority.decode("latin-1").lower()
        name = text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]
        allowed = name in self._names or is_loopback(name)
        if allowed and len(self._allowed) < _MOST_HOSTS:
            self._allowed[authority] = True
        return allowed
