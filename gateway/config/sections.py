"""Put a deployment's config together: the core's sections, and those that each part adds to the top of the file.

A part that lists `sections` in `gateway.parts.standard` has a module `config`. Its `SECTIONS` is a class of its own, a
`Sections`, whose fields are these sections; what they must be together with others, and what of them is resolved, it
says there too. They are read by that class: `deployment.of(LedgerSections).ledger`, of the part ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Self, cast

from pydantic import create_model, model_validator

from gateway.config.backends import Keyed
from gateway.config.environment import Environ
from gateway.config.resolver import Resolver
from gateway.config.schema import Deployment, StoreQuota
from gateway.parts.standard import config_modules
from policies.errors import Finding, KeyPath
from policies.validation import Section, raise_findings


class Sections(Section):
    """Sections that a part adds to the config. Each method says nothing unless the part's class has its own."""

    resolved: ClassVar[frozenset[str]] = frozenset()
    """Keys, at any depth, that `resolve` sets; written in a file they are refused."""

    @classmethod
    def environ(cls, environ: Environ) -> Environ:
        """Return the environment of the default config with what this part fills in."""
        return environ

    @classmethod
    def check(cls, deployment: Deployment) -> Iterator[Finding]:
        """Yield what is wrong between sections, once each of them is valid by itself."""
        yield from ()

    @classmethod
    def resolve(cls, deployment: Deployment, resolver: Resolver) -> Mapping[str, object]:
        """Return sections with their secrets and absolute paths filled in, by name; those of the core and of parts that
        stand before this one in the list are already.

        What is wrong or doubtful goes to the resolver.
        """
        return {}

    @classmethod
    def servers(cls, deployment: Deployment) -> Iterator[tuple[KeyPath, Keyed]]:
        """Yield each server that is called with a key or an identity, with its place."""
        yield from ()

    @classmethod
    def named(cls, deployment: Deployment) -> Mapping[str, Sequence[str]]:
        """Return the names in these sections that policies may refer to, by section."""
        return {}

    @classmethod
    def quotas(cls, deployment: Deployment) -> Mapping[str, StoreQuota]:
        """Return the quotas of what the store keeps for each tenant, by section."""
        return {}

    @classmethod
    def shown(cls, deployment: Deployment) -> Mapping[str, Any]:
        """Return further members, by name, for the JSON that `tierline check` prints."""
        return {}

    @classmethod
    def doubts(cls, deployment: Deployment) -> Iterator[Finding]:
        """Yield warnings that `tierline check` alone looks for, as they read files."""
        yield from ()

    @classmethod
    def summary(cls, deployment: Deployment) -> Iterator[str]:
        """Yield the lines that `tierline check` prints about these sections."""
        yield from ()


@cache
def sections_of_parts() -> tuple[type[Sections], ...]:
    """Return the sections of each installed part that has some, in the order of the parts."""
    return tuple(cast("type[Sections]", module.SECTIONS) for module in config_modules())


class _CheckedDeployment(Deployment):
    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        raise_findings(finding for part in sections_of_parts() for finding in part.check(self))
        return self


@cache
def deployment_model() -> type[Deployment]:
    """Return the model of a config file: `Deployment` with the sections of the installed parts."""
    bases = (*reversed(sections_of_parts()), _CheckedDeployment)  # pydantic takes the fields of the last base first
    whole = cast("tuple[type[Deployment], ...]", bases)
    return create_model("Deployment", __base__=whole, __doc__=Deployment.__doc__)


def asked_quotas(deployment: Deployment) -> dict[str, StoreQuota]:
    """Return the quotas that the config states by section: the cache's, for each scope, and parts', for each tenant."""
    of_parts = (sections.quotas(deployment) for sections in sections_of_parts())
    return {"cache": deployment.cache, **{name: quota for quotas in of_parts for name, quota in quotas.items()}}
