"""Hold the command-line settings of a gateway, and load its deployment and policies from them.

The commands make a Launch from their flags.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import orjson

from gateway.config.addresses import is_loopback
from gateway.config.backends import BackendConfig, TierConfig
from gateway.config.environment import Environ
from gateway.config.loader import default_config, load_deployment
from gateway.config.schema import Deployment
from gateway.config.sections import sections_of_parts
from policies.errors import InvalidContent
from policies.loader import SHIPPED, PolicySource
from policies.model import CrossEncoderKind, DeployedTier
from policies.yaml_source import read_yaml


def _open(host: str) -> str:
    return (
        f"{host or 'every address'} can be reached from other machines, and without tenants no key is required: "
        "anyone there could spend the backends' keys. Add tenants or `keys: {required: true}`, or listen on 127.0.0.1; "
        "if something in front controls access, set access: {keyless: true}"
    )


class CannotServe(Exception):
    """Raised when the gateway cannot be started as requested. The message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Command-line settings; None means the config's value, or the config and policies shipped with Tierline."""

    config: Path | None = None
    policies: Path | None = None
    host: str | None = None
    port: int | None = None
    workers: int = 1

    @property
    def config_file(self) -> Path:
        """The config file that is loaded."""
        return self.config or default_config()

    def deployment(self, environ: Environ = os.environ, *, reads: bool = False) -> Deployment:
        """Load the deployment, with `host` and `port` in place of the config's; `reads` as in `load_deployment`.

        Raises ConfigError for an invalid config, and for an address that other machines reach if no key is required,
        unless the config has `access: {keyless: true}`.
        """
        deployment = load_deployment(self.config, environ, reads=reads)
        given = {"host": self.host, "port": self.port}
        deployment = deployment.model_copy(update={name: value for name, value in given.items() if value is not None})
        if not reads and deployment.keyless and not deployment.access.keyless and not is_loopback(deployment.host):
            raise InvalidContent([read_yaml(self.config_file).problem(("host",), _open(deployment.host))])
        return deployment

    def policy_source(self, deployment: Deployment) -> PolicySource:
        """Return the source of that deployment's policies, without reading them yet."""
        return PolicySource(
            self.policies or SHIPPED,
            tuple(map(_deployed, deployment.tiers)),
            deployment.default_surface,
            tuple(name for name in deployment.tenant_names if name not in deployment.team_of),
            deployment.backend_models,
            {kind: tuple(names) for part in sections_of_parts() for kind, names in part.named(deployment).items()},
            _kind_of(deployment.cross_encoder_folder),
        )


def _kind_of(cross_encoder: Path | None) -> CrossEncoderKind:
    if cross_encoder is None:
        return "none"
    return "measured" if (cross_encoder / "sheet.json").is_file() else "unmeasured"


def _deployed(tier: TierConfig) -> DeployedTier:
    """Return the tier for checking policies: with its configured backends only, or all if none is configured."""
    backends = [backend for backend in tier.backends if backend.configured] or tier.backends
    return DeployedTier(
        tier.name,
        tuple(sorted({backend.model for backend in backends})) if tier.configured else (),
        frozenset.intersection(*(backend.can for backend in backends)),
        tier.unconfigured_reason or "",
        judges=any(backend.judges_alone for backend in tier.backends),
        fields=tuple(sorted({_set_by(backend) for backend in backends if backend.sets_fields})),
    )


def _set_by(backend: BackendConfig) -> str:
    return orjson.dumps({"set": backend.set, "force": backend.force}, option=orjson.OPT_SORT_KEYS).decode()
