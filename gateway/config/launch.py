"""What a gateway is launched with: the command line's part of it, the same in every process that serves.

The commands make a Launch from their flags; the server hands it to its workers as text, for they are spawned.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway.config.addresses import is_loopback
from gateway.config.environment import Environ
from gateway.config.loader import default_config, load_deployment
from gateway.config.schema import Deployment, TierConfig
from policies.errors import InvalidContent
from policies.loader import SHIPPED, PolicySource
from policies.model import DeployedTier
from policies.yaml_source import read_yaml


def _open(host: str) -> str:
    return (
        f"{host or 'every address'} can be reached from other machines, and without tenants no key is asked for: "
        "anyone there could spend the backends' keys. Add tenants, or listen on 127.0.0.1; where something in front "
        "keeps strangers out, say so with access: {keyless: true}"
    )


class CannotServe(Exception):
    """The gateway cannot be started as it was asked to be. The message is one clear line."""


@dataclass(frozen=True, slots=True)
class Launch:
    """None leaves the choice to the config, or to what comes with Tierline."""

    config: Path | None = None
    policies: Path | None = None
    host: str | None = None
    port: int | None = None
    workers: int = 1

    def deployment(self, environ: Environ = os.environ) -> Deployment:
        """Load the deployment, with `host` and `port` in place of the config's; raises ConfigError.

        An address that other machines reach is refused where no key is asked for, unless the config says it is meant.
        """
        deployment = load_deployment(self.config, environ)
        given = {"host": self.host, "port": self.port}
        deployment = deployment.model_copy(update={name: value for name, value in given.items() if value is not None})
        if deployment.keyless and not deployment.access.keyless and not is_loopback(deployment.host):
            raise InvalidContent(
                [read_yaml(self.config or default_config()).problem(("host",), _open(deployment.host))]
            )
        return deployment

    def policy_source(self, deployment: Deployment) -> PolicySource:
        """Where the policies of that deployment come from. Nothing is read yet."""
        return PolicySource(
            self.policies or SHIPPED,
            tuple(map(_deployed, deployment.tiers)),
            deployment.default_surface,
            deployment.teamless,
            deployment.backend_names,
            deployment.cross_encoder is not None,
        )

    def to_text(self) -> str:
        """For a variable of a worker's environment."""
        return orjson.dumps(asdict(self), default=str).decode()

    @classmethod
    def from_text(cls, text: str) -> Launch:
        """What `to_text` wrote."""
        fields: dict[str, Any] = orjson.loads(text)
        paths = {name: Path(fields[name]) for name in ("config", "policies") if fields[name] is not None}
        return cls(**{**fields, **paths})


def _deployed(tier: TierConfig) -> DeployedTier:
    """The tier, as policies see it: where a backend is configured, the others do not count."""
    backends = [backend for backend in tier.backends if backend.configured] or tier.backends
    return DeployedTier(
        tier.name,
        tuple(sorted({backend.model for backend in backends})) if tier.configured else (),
        frozenset.intersection(*(frozenset[str](backend.capabilities) for backend in backends)),
        tier.unconfigured_reason or "",
    )
