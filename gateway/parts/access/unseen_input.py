"""Estimate a prompt's tokens where part of it is not text in the request's body.

part                                            what it counts as
----------------------------------------------  ---------------------------------------------------------------
a picture, in the body or by URL                1,600 tokens
a file, a document, audio, by id, URL or bytes  all of the tier's context: what is in it only the provider knows
a prompt that the provider keeps by its id      so too
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from routing.features import OF_AN_IMAGE, text_of

if TYPE_CHECKING:
    from gateway.dialects.native import Native
    from gateway.tiers import Tier
    from routing.features import Features

_UNSEEN: Final = frozenset({"audio", "files", "file_urls"})
"""Needs of a request (`routing.features.FURTHER`) with parts whose length the body does not tell."""
_BLOCKS: Final = frozenset({"document", "image", "container_upload", "input_file", "input_image", "file"})
"""Types of content that the provider has, or fetches."""
_UNKNOWN_CONTEXT: Final = 200_000
"""Tokens that a prompt may have at a tier whose context nobody states."""


def prompt_tokens(
    features: Features, body: Mapping[str, Any], native: Native | None, tier: Tier | None
) -> tuple[int, bool]:
    """Return the tokens of a prompt at a tier, and whether the body shows all of it."""
    if not features.further.isdisjoint(_UNSEEN) or (native is not None and native.lost and _is_unseen(native)):
        context = None if tier is None else tier.context()
        return max(features.approx_tokens, context or _UNKNOWN_CONTEXT), False
    if not features.has_images:
        return features.approx_tokens, True
    images = sum(text_of(message.get("content"))[1] for message in body["messages"])
    return features.approx_tokens + images * OF_AN_IMAGE, True


def _is_unseen(native: Native) -> bool:
    return any(
        path == "prompt" or (type(value) is dict and value.get("type") in _BLOCKS)
        for path, value in native.lost.items()
    )
