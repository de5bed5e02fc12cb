"""Mark reasoning that only its maker can read, so that no other backend is ever sent it.

Providers return reasoning as signed or encrypted texts (`signature`, `encrypted_content`, `data`) that the client sends
back with the next turn. Each is accepted by the provider, model and account that made it and refused by all others with
a 400. The gateway therefore seals each of these texts: it hands out `tl1.MAKER.TAG.TEXT`, where TAG is the text's
BLAKE2b hash of 8 bytes, keyed with the maker's own secret. A later request goes to a backend with the texts that this
backend made, unsealed; any other text is removed with its item. Nothing is stored, so this holds over workers and
restarts.

In chat completions, reasoning travels as `reasoning_details` in a message or delta, a list of OpenRouter's objects:
`{"type": "reasoning.text", "text", "signature"}`, `{"type": "reasoning.summary", "summary"}` and
`{"type": "reasoning.encrypted", "data"}`, each with `id`, `format` and `index` where there are any.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any, Final

from policies.value_type import value_type

DETAILS: Final = "reasoning_details"
_TEXTS: Final = ("text", "summary", "data")
"""Members of a detail that a stream may give in pieces."""
_MARK: Final = "tl1."
_MAKER_CHARS: Final = 8
_TAG_BYTES: Final = 8


@value_type
class Maker:
    """The backend whose reasoning is sealed. `name` is a short public hash of what must be equal to read it again."""

    name: str
    secret: bytes

    def seal(self, text: str) -> str:
        """Return a signed or encrypted text, marked as this maker's."""
        return f"{_MARK}{self.name}.{self._tag(text)}.{text}"

    def unseal(self, sealed: object) -> str | None:
        """Return the text that this maker sealed; None if another did, or nobody, as of what is no text."""
        if not isinstance(sealed, str) or not sealed.startswith(own := f"{_MARK}{self.name}."):
            return None
        tag, _, text = sealed[len(own) :].partition(".")
        return text if hmac.compare_digest(tag.encode(), self._tag(text).encode()) else None

    def _tag(self, text: str) -> str:
        sealed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self.secret, digest_size=_TAG_BYTES)
        return sealed.hexdigest()


NOBODY: Final = Maker("", b"")
"""The maker of a backend that is built without one."""


def maker_of(scope: str, key: str | None) -> Maker:
    """Return the maker for a scope (what must be equal to read reasoning: endpoint and model, or a configured name)."""
    secret = hashlib.sha256(f"tierline reasoning\0{scope}\0{key or ''}".encode()).digest()
    return Maker(hashlib.sha256(secret).hexdigest()[:_MAKER_CHARS], secret)


def maker_name(sealed: str) -> str | None:
    """Return the name of the maker that a text claims; None if it is not sealed."""
    if not sealed.startswith(_MARK):
        return None
    return sealed[len(_MARK) :].partition(".")[0]


def joined_details(pieces: Iterable[Any]) -> list[dict[str, Any]]:
    """Return details with the pieces that a stream gave joined: those of one type and index that follow each other.

    Some backends give no index: then another id, or another encrypted text, begins another detail. A detail in one
    piece is returned as it is, not copied.
    """
    joined: list[dict[str, Any]] = []
    copied = False
    for piece in pieces:
        if not isinstance(piece, dict):
            continue
        if not joined or not _goes_on(joined[-1], piece):
            joined.append(piece)
            copied = False
            continue
        if not copied:
            joined[-1] = dict(joined[-1])
            copied = True
        last = joined[-1]
        for name, value in piece.items():
            before = last.get(name)
            if name in _TEXTS and isinstance(value, str) and isinstance(before, str):
                last[name] = before + value
            elif value is not None:
                last[name] = value
    return joined


def _goes_on(detail: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Return whether a piece belongs to the detail before it."""
    index = piece.get("index")
    if piece.get("type") != detail.get("type") or index != detail.get("index"):
        return False
    return piece.get("id") in (None, detail.get("id")) and not (index is None and "data" in piece)
