"""Define what the part that provides `servers` makes for one backend: what its server wants otherwise than others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gateway.parts.standard import one

if TYPE_CHECKING:
    from gateway.backends.base import Backend


class FieldMemory(Protocol):
    """Remembers which request fields one backend's model refuses. What it says of a field is its own kind of value."""

    def __bool__(self) -> bool:
        """Return whether any is left out now."""

    def names(self) -> list[str]:
        """Return the paths of what is left out now."""

    def left_out(self, body: dict[str, Any], also: Sequence[Any] = ()) -> tuple[dict[str, Any], list[str]]:
        """Return a copy of the body without what is refused, and the paths of that; `also` is left out here alone."""

    def asks_for(self, body: Mapping[str, Any], path: str) -> bool:
        """Return whether a body asks for anything by the field at such a path."""

    def refused(self, status: int, error: bytes, body: Mapping[str, Any], also: Sequence[Any]) -> Refused:
        """Return what an error in reply to this body refuses. `also` has been left out of it."""

    def remember(self, fields: Iterable[Any]) -> None:
        """Leave these fields out from now on: the request without them was answered."""


Refused = tuple[Sequence[Any], bool]
"""Fields that can be left out of another try, and whether another model may take what this one refuses."""


@one("servers")
def new_field_memory(backend: str) -> FieldMemory | None:
    """Return what remembers the fields that the backend of this name refuses."""


@one("servers")
def adapted(backend: Backend, rename: Mapping[str, str], omit: frozenset[str]) -> Backend:
    """Return a backend that sends fields under another name, or not at all; without, they go out as they came."""
    return backend
