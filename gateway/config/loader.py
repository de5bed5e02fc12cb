"""Load a deployment's config: the file, then the environment, then the secrets, each checked before it is used."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from cache import shipped_cross_encoder
from gateway.config.addresses import check_store_url
from gateway.config.backends import BackendConfig
from gateway.config.environment import (
    Environ,
    interpolate,
)
from gateway.config.resolver import Resolver
from gateway.config.schema import (
    Deployment,
    PoliciesConfig,
    StoreConfig,
)
from gateway.config.sections import deployment_model, sections_of_parts
from gateway.parts.standard import absent, missing_for, one, part_missing_for_section
from policies.errors import InvalidContent, KeyPath
from policies.validation import validate
from policies.yaml_source import Document, read_yaml
from routing.confidence.judge import ScoringHead
from routing.difficulty.model import ArtefactError

_PACKAGE = Path(__file__).parents[1]
_IN_CHECKOUT = _PACKAGE.parent / "deploy" / "tierline.yaml"
_IN_WHEEL = _PACKAGE / "defaults" / "tierline.yaml"

STORE_URL = "TIERLINE_STORE_URL"
"""Environment variable with the store's URL, used if the config has none."""
POLICY_SOURCE = "TIERLINE_POLICY_SOURCE"
"""Environment variable with `files` or `store`, used in place of the config's `policies.source`."""
LOCAL_CONTEXT = "TIERLINE_LOCAL_CONTEXT"
"""Environment variable with the context length in tokens of the model at LOCAL_URL; set by `tierline up`."""
_SECRET_KEYS = frozenset(
    {"key", "keys", "api_key", "apikey", "token", "secret", "client_secret", "password", "authorization"}
)
_RESOLVED_KEYS = frozenset(
    {
        "unconfigured_reason",
        "price_source",
        "provider",
        "retires",
        "prior",
        "head",
        "warnings",
        "cross_encoder_folder",
    }
)
_PASSWORD_IN_URL = re.compile(r"://[^/@\s]*:[^/@\s$][^/@\s]*@|://.*[?&](?:sentinel_)?password=[^&$]")


@one("heads")
def load_head(file: Path | None, model: str) -> ScoringHead | None:
    """Return the confidence head in a file, or that which ships for a model; None without. Raises ArtefactError."""


def default_config() -> Path:
    """Return the path of the default config: in the checkout, or in the installed package."""
    return _IN_CHECKOUT if _IN_CHECKOUT.is_file() else _IN_WHEEL


def load_deployment(file: Path | None = None, environ: Environ = os.environ, *, reads: bool = False) -> Deployment:
    """Load the deployment described by `file` (by default `default_config()`); raises ConfigError.

    With `reads` a key of clients, of the admin API or of alerts that is not there is no mistake: for commands that read
    what a gateway has recorded, in a shell that has none of the server's secrets.
    Paths in the file are relative to its folder, except `embedding.state`, which is relative to the working directory.
    """
    written = read_yaml(file or default_config())
    lacks = [(name, part) for name in written.value if (part := part_missing_for_section(name)) is not None]
    if lacks:
        raise InvalidContent([written.problem((name,), absent(f"the section {name}", part)) for name, part in lacks])
    for sections in sections_of_parts() if file is None else ():
        environ = sections.environ(environ)
    filled = interpolate(written, environ)
    deployment = validate(deployment_model(), filled, lambda path, _: _refusal(path, written))
    deployment = _Resolver(written, environ, reads=reads).resolve(deployment)
    if deployment.policies.source == "store" and (lack := missing_for("policies", "policies.source: store")):
        raise InvalidContent([written.problem(("policies", "source"), lack)])
    return deployment


def _refusal(path: KeyPath, written: Document) -> str | None:
    key, value = path[-1], written.at(path)
    if key in _SECRET_KEYS and not isinstance(value, dict):
        return "a secret is never written here; name its environment variable with key_env, or its file with key_file"
    if isinstance(value, str) and _PASSWORD_IN_URL.search(value):
        return "a password is never written here; put the whole URL in an environment variable and refer to it: ${VAR}"
    if path == ("store", "index") and value == "query_engine":
        return "query_engine was taken out; leave it out: vector sets of Redis 8, else a copy in each worker, are taken"
    return "set by Tierline itself; remove it" if key in resolved_keys() else None


@cache
def resolved_keys() -> frozenset[str]:
    """Return the keys, at any depth, that the loader and the parts set."""
    return _RESOLVED_KEYS.union(*(sections.resolved for sections in sections_of_parts()))


class _Resolver(Resolver):
    """Fill secrets and absolute paths into the core's sections of a validated deployment."""

    def resolve(self, deployment: Deployment) -> Deployment:
        tiers = tuple(
            tier.model_copy(
                update={
                    "backends": tuple(
                        self._backend(("tiers", i, "backends", j), backend) for j, backend in enumerate(tier.backends)
                    )
                }
            )
            for i, tier in enumerate(deployment.tiers)
        )
        update = {
            "tiers": tiers,
            "store": self._store(deployment.store),
            "policies": self._policies(deployment.policies),
            "classifier": self.existing(("classifier",), deployment.classifier),
            "cross_encoder_folder": self._cross_encoder(deployment.cross_encoder),
        }
        deployment = deployment.model_copy(update=update)
        for sections in sections_of_parts():
            deployment = deployment.model_copy(update=sections.resolve(deployment, self))
        if self.problems:
            raise InvalidContent(self.problems)
        return deployment.model_copy(update={"warnings": tuple(self.warnings)})

    def _store(self, store: StoreConfig) -> StoreConfig:
        url = self.environ.get(STORE_URL)
        if store.url or not url:
            return store
        try:
            check_store_url(url)
        except ValueError as error:
            self.refuse(("store", "url"), f"{STORE_URL}: {error}")
        return store.model_copy(update={"url": url})

    def _policies(self, policies: PoliciesConfig) -> PoliciesConfig:
        source = self.environ.get(POLICY_SOURCE)
        if not source:
            return policies
        if source not in ("files", "store"):
            self.refuse(("policies", "source"), f"{POLICY_SOURCE} is {source!r}; say files or store")
            return policies
        return policies.model_copy(update={"source": source})

    def _backend(self, path: KeyPath, backend: BackendConfig) -> BackendConfig:
        key, reason = self.own_key(path, backend, lacks_url=backend.lacks_url)
        head = self._head((*path, "confidence_head"), backend)
        context = backend.context if backend.context is not None else self._local_context(backend)
        update: dict[str, Any] = {"key": key, "unconfigured_reason": reason, "head": head, "context": context}
        update["key_file"] = backend.key_file and self.absolute(backend.key_file)
        return backend.model_copy(update=update)

    def _local_context(self, backend: BackendConfig) -> int | None:
        """Return the context length in tokens of `tierline up`'s model; None if this backend is not that model."""
        context = self.environ.get(LOCAL_CONTEXT, "")
        return int(context) if context.isdecimal() and self.is_local(backend) else None

    def _head(self, path: KeyPath, backend: BackendConfig) -> ScoringHead | None:
        wanted = backend.confidence_head
        if wanted == "none":
            return None
        file = None if wanted == "default" else self.absolute(Path(wanted))
        if file is not None and (missing := missing_for("heads", f"the confidence head in {wanted}")):
            self.refuse(path, missing)
            return None
        try:
            head = load_head(file, backend.model)
        except ArtefactError as error:
            self.refuse(path, f"{error}; fit one with `tierline fit train confidence`, or say none")
            return None
        if file is not None and head is not None and head.model != backend.model:
            self.warn(path, f"was fitted to {head.model}, and says little of how often {backend.model} is right")
        return head

    def _cross_encoder(self, wanted: str) -> Path | None:
        if wanted == "none":
            return None
        if missing := missing_for("encoders", f"the cross-encoder in {wanted}"):
            if wanted != "default":
                self.refuse(("cross_encoder",), missing)
            return None
        if wanted != "default":
            return self.existing(("cross_encoder",), Path(wanted))
        shipped = shipped_cross_encoder()
        if not shipped.is_dir():
            message = f"the one that ships is not at {shipped}; install Tierline again, or set cross_encoder: none"
            self.refuse(("cross_encoder",), message)
        return shipped
