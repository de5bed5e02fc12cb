"""Name fields of a chat-completions body as a client of another dialect named them in its own.

A backend reports what it could not say, and what it refuses, by its path in the chat-completions body. A translated
body knows where its parts come from: `paths` of its `Native` holds the origin of each message, and `path_in` finds the
rest in the client's own body. Paths are turned only where there are any to report, so that no other request pays.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.dialects.native import Native


def client_path(native: Native | None, path: str) -> str:
    """Return the client's path of a field of its translated body; the same for a body that was not translated."""
    return path if native is None else native.path_in(native, path)


def client_paths(native: Native | None, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the client's paths of fields of its translated body, each once."""
    return tuple(dict.fromkeys(client_path(native, path) for path in paths))
