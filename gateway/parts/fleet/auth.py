"""Define the config of `auth`: the identity of a cloud account in place of a key."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, Self

from pydantic import model_validator

from gateway.config.backends import Auth
from gateway.config.notations import OptionalText
from policies.errors import Finding
from policies.validation import raise_findings

if TYPE_CHECKING:
    from gateway.backends.base import Identity

_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "aws": frozenset({"region", "service", "profile"}),
    "google": frozenset({"scope"}),
    "entra": frozenset({"client_id", "scope"}),
}
"""Keys beside the kind, by that."""
_PROVIDERS: Final = {"aws": "aws.bedrock", "google": "gcp.vertex_ai", "entra": "azure.ai.openai"}
_PACKAGES: Final = {"aws": "botocore", "google": "google.auth", "entra": "azure.identity"}
"""What is imported for each kind: an extra of Tierline has its name."""


class CloudAuth(Auth):
    """The identity of a cloud account, which the provider's own library finds, as it does for its other tools."""

    kind: Literal["aws", "google", "entra"]
    region: OptionalText = None
    """Region that requests are signed for; None for the one in the URL, else the account's."""
    service: OptionalText = None
    """Service that requests are signed for; None for Bedrock's."""
    profile: OptionalText = None
    """Profile of the shared AWS files; None for the usual one."""
    client_id: OptionalText = None
    """Client id of the managed or workload identity; None for the one in the environment."""
    scope: OptionalText = None
    """Scope of the token; None for that of Google Cloud, or of Azure's AI services."""

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> Self:
        spare = sorted(self.model_fields_set - _KEYS[self.kind] - {"kind"})
        raise_findings(Finding((name,), f"kind: {self.kind} has no {name}; leave it out") for name in spare)
        return self

    @property
    def provider(self) -> str:
        """See `Auth.provider`."""
        return _PROVIDERS[self.kind]

    @property
    def signs_bodies(self) -> bool:
        """See `Auth.signs_bodies`."""
        return self.kind == "aws"

    def lacks(self) -> str:
        """See `Auth.lacks`."""
        package = _PACKAGES[self.kind]
        missing = f"{package}, which is not installed: pip install 'tierline[{self.kind}]'"
        return "" if _is_importable(package) else missing

    def identity(self) -> Identity:
        """See `Auth.identity`."""
        from gateway.parts.fleet.clouds import identity_for

        return identity_for(self.model_dump())


def _is_importable(package: str) -> bool:
    """Return whether a package can be imported, without doing so."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
