"""Define the endpoints section of a policy: who answers what is not a chat on this surface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from policies.errors import KeyPath
from policies.validation import Seconds, Section

ServiceName = Annotated[str, Field(min_length=1)]


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
    belong to `files`. Without a service for `completions` (`/v1/completions`) these are asked as chats.
    """

    embeddings: EmbeddingsEndpoint = EmbeddingsEndpoint()
    completions: ServiceName | None = None
    moderations: ServiceName | None = None
    audio: ServiceName | None = None
    images: ServiceName | None = None
    files: ServiceName | None = None
    batches: ServiceName | None = None

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
