"""Try a key that has changed in its file at once: a call that was refused for its key looks, and goes out once more.

The file is read each second anyway (`gateway.config.key_files`), so this closes the second in which the provider has
revoked the old key and the gateway has not read the new one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class KeyRenewal:
    """Know how often a backend's key has changed, and look for another. Use it from one event loop."""

    __slots__ = ("changes", "look")

    def __init__(self) -> None:
        self.changes = 0
        """How often the key has changed."""
        self.look: Callable[[], Awaitable[None]] | None = None
        """Reads the key's file if that has changed; None for a key from elsewhere."""

    async def renewed(self, since: int) -> bool:
        """Return whether the key has changed since there were `since` changes, having looked for another if not."""
        if self.changes == since and self.look is not None:
            await self.look()
        return self.changes != since
