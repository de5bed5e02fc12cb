"""The id, model and time of a stream: its first chunk's in every chunk, whatever the backends say later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Identity:
    """Who a stream says it is. What a chunk lacks is only added where the stream has it."""

    __slots__ = ("_created", "_fingerprint", "_id", "_model")

    def __init__(self, chunks: Iterable[Mapping[str, Any]]) -> None:
        """`chunks` are the first ones; Azure's very first has an empty id and model, so those do not count."""
        self._id = self._model = self._created = self._fingerprint = None
        for chunk in chunks:
            self._learn(chunk)

    def impose(self, chunk: dict[str, Any]) -> bool:
        """Makes the chunk say the same as all others; whether that has changed it."""
        if chunk.get("id") == self._id and chunk.get("model") == self._model and chunk.get("created") == self._created:
            return False
        self._learn(chunk)
        return self._write(chunk)

    def impose_all(self, chunk: dict[str, Any]) -> None:
        """`impose`, for a chunk of another backend: its fingerprint goes too."""
        self._write(chunk)
        chunk.pop("system_fingerprint", None)
        if self._fingerprint is not None:
            chunk["system_fingerprint"] = self._fingerprint

    def _learn(self, chunk: Mapping[str, Any]) -> None:
        self._id = self._id or chunk.get("id")
        self._model = self._model or chunk.get("model")
        self._created = self._created or chunk.get("created")
        self._fingerprint = self._fingerprint or chunk.get("system_fingerprint")

    def _write(self, chunk: dict[str, Any]) -> bool:
        changed = False
        for name, value in (("id", self._id), ("model", self._model), ("created", self._created)):
            if chunk.get(name) != value and (value is not None or name in chunk):
                chunk[name] = value
                changed = True
        return changed
