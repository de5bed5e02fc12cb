"""Define what a client's dialect does for the HTTP route: read a body; write whole replies, streams and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.dialects.native import Native
from gateway.errors import ApiError


class StreamWriter(Protocol):
    """Write one streamed reply in the client's dialect, from the chunks of chat completions in their order."""

    def begin(self) -> bytes:
        """Begin the stream before anything of its answer is known; return its first events, b'' if there are none."""

    def alive(self) -> bytes:
        """Return an event that shows, after `begin`, that the connection works; b'' if the API has none."""

    def chunk(self, value: Mapping[str, Any]) -> bytes:
        """Return the encoded events for one chunk, b'' if there are none yet."""

    def done(self) -> bytes:
        """Return the last events of a stream that ended well."""

    def error(self, error: Mapping[str, Any]) -> bytes:
        """Return the events that end a stream with an error: the object under `error` in OpenAI's envelope."""


class ClientDialect(Protocol):
    """Translate for the clients of one dialect; one instance serves one request.

    `read` comes first. The others may use what it has noted of the request.
    """

    async def read(
        self, body: dict[str, Any], tenant: str, *, large: bool
    ) -> tuple[dict[str, Any], Native | None, bool]:
        """Return the chat-completions body of a parsed JSON object, its own form, and whether it is large.

        The form is None for a dialect that no backend speaks.

        A large body is translated in a thread (`gateway.off_loop`). Raises ApiError, by the field's own path.
        """

    def path_of(self, path: str) -> str:
        """Return the client's path of a field of chat completions that the gateway names in `x-tierline-dropped`.

        A request with a `Native` is named in its client's words before, see `gateway.dialects.native`.
        """

    def limited(self, tokens: int) -> None:
        """Note the limit of the answer's tokens, where it is not the client's own."""

    def whole(self, completion: Mapping[str, Any]) -> bytes:
        """Return the JSON body of a whole reply."""

    def stream(self) -> StreamWriter:
        """Return the writer of a streamed reply."""

    def error(self, error: ApiError) -> bytes:
        """Return the JSON body of an error reply."""
