"""Name fields of a chat-completions body as a client of another dialect named them in its own.

A backend reports what it could not say, and what it refuses, by its path in the chat-completions body. A translated
body knows where its parts come from: `paths` of its NATIVE holds the origin of each message, and the rest is found in
the client's own body. Paths are turned only where there are any to report, so that no other request pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gateway.dialects.messages.paths import messages_path
from gateway.dialects.native import NATIVE
from gateway.dialects.responses.paths import responses_path

_OF: Final[Mapping[str, Callable[[Mapping[str, Any], str], str]]] = {
    "responses": responses_path,
    "messages": messages_path,
}


def client_path(body: Mapping[str, Any], path: str) -> str:
    """Return the client's path of a field of its translated body; the same for a body that was not translated."""
    native = body.get(NATIVE)
    return path if native is None else _OF[native["dialect"]](native, path)


def client_paths(body: Mapping[str, Any], paths: Iterable[str]) -> tuple[str, ...]:
    """Return the client's paths of fields of its translated body, each once."""
    if body.get(NATIVE) is None:
        return tuple(dict.fromkeys(paths))
    return tuple(dict.fromkeys(client_path(body, path) for path in paths))
