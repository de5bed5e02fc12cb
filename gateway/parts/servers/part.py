"""Provide the seam `servers` of `gateway.backends.server_forms`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.parts.servers.chat_forms import ServerChat
from gateway.parts.servers.chat_reasoning import last_maker
from gateway.parts.servers.quirks import AdaptedBackend
from gateway.parts.servers.refused_fields import RefusedFields

new_field_memory = RefusedFields
adapted = AdaptedBackend
chat_forms = ServerChat


def maker_finder() -> Callable[[Sequence[Any]], str | None]:
    """Return what finds the name of the maker of a conversation's latest sealed reasoning."""
    return last_maker
