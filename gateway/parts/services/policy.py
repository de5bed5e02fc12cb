"""Define the endpoints section of a policy: who answers what is not a chat on this surface."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from pydantic import Field, WithJsonSchema, field_validator

from policies.errors import Edit, Finding, KeyPath
from policies.misfits import no_such
from policies.model import Fits, Policy, Rules
from policies.sections import PolicySections
from policies.validation import Seconds, Section, raise_findings

ServiceName = Annotated[str, Field(min_length=1)]

_OTHER: Final = re.compile(r"^/v1(/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)+$")
OtherPath = Annotated[str, WithJsonSchema({"type": "string", "pattern": _OTHER.pattern})]
_SERVED: Final = frozenset(
    f"/v1/{path}"
    for path in ("chat/completions", "completions", "embeddings", "feedback", "messages", "messages/count_tokens")
)
"""Paths that the gateway answers itself, whatever is below them."""
_SERVED_WHOLE: Final = re.compile(
    r"/v1/(?:audio|batches|conversations|files|images|models|moderations|responses|uploads)(?:/|$)"
)
"""Those that are its own, or that other keys are for, with all below them."""


def _wrong_path(path: str) -> Finding | None:
    """Return why `endpoints.other` may not have a path; None if it may."""
    if not _OTHER.match(path) or len(path) > 128:
        message = f"{path!r} is no path to pass on; write one such as /v1/rerank, of at most 128 characters"
        return Finding((path,), message, "T105", of_key=True)
    covered = next((served for served in _SERVED if served == path or served.startswith(f"{path}/")), None)
    if covered is None and _SERVED_WHOLE.match(path):
        covered = path
    if covered is None:
        return None
    message = f"Tierline itself serves {covered}: requests for it would never be passed on by this key"
    return Finding((path,), message, "T107", "leave it out", (Edit((path,)),), of_key=True)


class EmbeddingsEndpoint(Section):
    """Who embeds texts, and for how long vectors are stored, in seconds; 0 stores none.

    Without a `service` the gateway's own encoder does (`embedding` in the deployment's config). `model` is what the
    service is asked for where a request names the surface; a request may also name a model of the service itself.
    `fallback` is a second service that has the same models, asked where the first one fails.
    """

    service: ServiceName | None = None
    fallback: ServiceName | None = None
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    ttl: Seconds = 86400.0


class Endpoints(Section):
    """Who answers what is not a chat: names of services in the deployment's config; None where no service does.

    `images` and the others stand for all paths under that name: `audio` for `/v1/audio/speech` and the rest. Uploads
    belong to `files`. Without a service for `completions` (`/v1/completions`) these are asked as chats. `other` has any
    further paths, each for all below it, too; of two that begin a request's path the longer counts.
    """

    embeddings: EmbeddingsEndpoint = EmbeddingsEndpoint()
    completions: ServiceName | None = None
    moderations: ServiceName | None = None
    audio: ServiceName | None = None
    images: ServiceName | None = None
    files: ServiceName | None = None
    batches: ServiceName | None = None
    other: Mapping[OtherPath, ServiceName] = {}

    @field_validator("other")
    @classmethod
    def _check_paths(cls, other: Mapping[str, str]) -> Mapping[str, str]:
        raise_findings(filter(None, map(_wrong_path, other)))
        return other

    def other_path(self, path: str) -> str | None:
        """Return the path of `other` that a request's path is, or is below: the longest; None if there is none."""
        while path not in self.other:
            path = path.rpartition("/")[0]
            if not path:
                return None
        return path

    def services(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield the services that are named, each with its place."""
        if self.embeddings.service is not None:
            yield ("endpoints", "embeddings", "service"), self.embeddings.service
        if self.embeddings.fallback is not None:
            yield ("endpoints", "embeddings", "fallback"), self.embeddings.fallback
        for name in ("completions", "moderations", "audio", "images", "files", "batches"):
            service = getattr(self, name)
            if service is not None:
                yield ("endpoints", name), service
        for path, service in self.other.items():
            yield ("endpoints", "other", path), service


class EndpointSections(PolicySections):
    """The section of policies that this part reads."""

    endpoints: Endpoints = Endpoints()

    @classmethod
    def misfits(cls, policy: Policy, fits: Fits) -> Iterator[Finding]:
        """Yield services that the deployment does not have."""
        services = fits.named.get("services", ())
        for at, name in endpoints_in(policy).services():
            if name not in services:
                mend = "" if services else f"write services: {{{name}: {{base_url: ...}}}} in the config"
                yield no_such("service", name, services, at, at, mend)

    @classmethod
    def scopes(cls, policy: Rules) -> int:
        """Return 1 where a service embeds, whose vectors are stored, else 0."""
        return int(endpoints_in(policy).embeddings.service is not None)


def endpoints_in(policy: Rules) -> Endpoints:
    """Return who answers what is not a chat."""
    return policy.of(EndpointSections).endpoints


SECTIONS: Final = EndpointSections
