"""Provide the seam `servers` of `gateway.seams`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.parts.servers.quirks import AdaptedBackend
from gateway.parts.servers.refused_fields import RefusedFields

if TYPE_CHECKING:
    from gateway.backends.base import Backend


def new_field_memory(backend: str) -> RefusedFields:
    """Return what remembers the fields that the backend of this name refuses."""
    return RefusedFields(backend)


def adapted(backend: Backend, rename: Mapping[str, str], omit: frozenset[str]) -> AdaptedBackend:
    """Return a backend that sends fields under another name, or not at all."""
    return AdaptedBackend(backend, rename, omit)
