"""Count what a request to a service makes, in units of the service's `request_price`.

endpoint          units of a POST
----------------  ------------------------------------------------------------------
images            the images that it asks for (`n`), in JSON or in a form
audio, uploaded   the MiB of its body, begun ones included: a longer recording costs more
batches           not known: a batch has any number of requests
anything else     one
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Final

_MIB: Final = 1 << 20
_MOST_IMAGES: Final = 10
"""Images of one request at OpenAI, which are reserved where a form is sent on before its `n` is read."""
_MOST_MIB: Final = 25
"""MiB of an upload of audio at OpenAI, which are reserved where its length is not announced."""
_N: Final = re.compile(rb'"n"\s*:\s*(\d{1,4})|name="?n"?\r\n(?:[^\r\n]+\r\n)*\r\n(\d{1,4})')
"""The member of a JSON body, and the field of a form; within a JSON text the quotes are escaped."""
_OVERLAP: Final = 256


class Units:
    """Count the units of one request while its body passes."""

    def __init__(self, endpoint: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        """`endpoint` is the policy's, `headers` are the client's."""
        self._images = endpoint == "images"
        is_json = headers.get(b"content-type", b"").startswith(b"application/json")
        self._audio = endpoint == "audio" and not is_json
        self.unknown = endpoint == "batches" or path.rstrip("/").endswith("/batches")
        """Whether nobody can say what the request costs."""
        length = headers.get(b"content-length", b"")
        self._announced = int(length) if length.isdigit() else None
        self._size, self._n, self._tail = 0, 0, b""

    def feed(self, part: bytes) -> None:
        """Read a part of the body."""
        self._size += len(part)
        if self._images:
            for match in _N.finditer(self._tail + part):
                self._n = max(self._n, int(match[1] or match[2]))
            self._tail = (self._tail + part)[-_OVERLAP:]

    def of_parts(self, body: bytes | AsyncIterator[bytes] | None) -> bytes | AsyncIterator[bytes] | None:
        """Return the same body, of which every part is fed as it passes."""
        if isinstance(body, AsyncIterator):
            return self._fed(body)
        if body is not None and not self._size:
            self.feed(body)
        return body

    def count(self) -> int:
        """Return the units, once the body has passed."""
        if self._images:
            return max(1, self._n)
        return max(1, -(-self._size // _MIB)) if self._audio else 1

    def most(self) -> int:
        """Return the units that are reserved: those of a body that was fed, else the most that there can be."""
        if self._size:
            return self.count()
        if self._audio:
            return _MOST_MIB if self._announced is None else max(1, -(-self._announced // _MIB))
        return _MOST_IMAGES if self._images else 1

    async def _fed(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in parts:
            self.feed(part)
            yield part
