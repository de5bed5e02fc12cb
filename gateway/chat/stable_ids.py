"""The id, model and time of a stream: its first chunk's in every chunk, whatever the backends say later."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gateway.chat.completions import new_completion_id

_OBJECT: Final = "chat.completion.chunk"


class StableIds:
    """Who a stream says it is. What its first chunks lack is made up once: every chunk has an id, model and time."""

    __slots__ = ("_created", "_fingerprint", "_id", "_model")

    def __init__(self, chunks: Iterable[Mapping[str, Any]], model: str) -> None:
        """`chunks` are the first ones, up to one with a choice: Azure's very first has an empty id and model, which do
        not count. `model` is for a stream that names none.
        """
        self._id = self._model = self._created = self._fingerprint = None
        for chunk in chunks:
            self._id = self._id or chunk.get("id")
            self._model = self._model or chunk.get("model")
            self._created = self._created or chunk.get("created")
            self._fingerprint = self._fingerprint or chunk.get("system_fingerprint")
        self._id = self._id or new_completion_id()
        self._model = self._model or model
        self._created = self._created or int(time.time())

    def impose(self, chunk: dict[str, Any]) -> bool:
        """Makes the chunk say the same as all others; whether that has changed it."""
        if (
            chunk.get("id") == self._id
            and chunk.get("model") == self._model
            and chunk.get("created") == self._created
            and chunk.get("object") == _OBJECT
        ):
            return False
        chunk["id"], chunk["model"], chunk["created"], chunk["object"] = self._id, self._model, self._created, _OBJECT
        return True

    def impose_all(self, chunk: dict[str, Any]) -> None:
        """`impose`, for a chunk of another backend: its fingerprint goes too."""
        self.impose(chunk)
        chunk.pop("system_fingerprint", None)
        if self._fingerprint is not None:
            chunk["system_fingerprint"] = self._fingerprint
