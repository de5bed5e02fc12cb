"""Say what the figures of a plan hold for: the artefacts and prices of a deployment, and the policy in force."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import orjson

from gateway.parts.lab.replay.plan_file import BoundTo
from routing.difficulty.model import shipped_artefact, version_in

if TYPE_CHECKING:
    from gateway.config.schema import Deployment


def bound_to(deployment: Deployment, base: str) -> BoundTo:
    """Return what a plan made now is bound to, where `base` is the version in force."""
    artefacts = {
        "classifier": version_in(deployment.classifier or shipped_artefact(deployment.embedding.kind)),
        "embedder": deployment.embedding.kind,
    }
    prices = {}
    for tier in deployment.tiers:
        for backend in tier.backends:
            prices[f"{tier.name}/{backend.name}"] = [
                backend.model,
                None if backend.price is None else backend.price.model_dump(),
            ]
            if backend.head is not None:
                artefacts[f"confidence head of {backend.name}"] = backend.head.version
    hashed = hashlib.sha256(orjson.dumps(sorted(prices.items()))).hexdigest()[:12]
    return BoundTo(base, artefacts, hashed)
