"""Say what the names of Anthropic's models tell: family, version, and from what length a prompt is cached."""

from __future__ import annotations

import re
from typing import Final

_ALWAYS_THINK: Final = frozenset({"fable", "mythos"})
"""Families of Anthropic's models of which each thinks always."""
_CLAUDE: Final = re.compile(r"(?:(\d)(?:-(\d))?-)?(opus|sonnet|haiku|fable|mythos)(?:-(\d)(?:[-.](\d))?(?!\d))?")


def claude_version(model: str) -> tuple[str, tuple[int, int]] | None:
    """Return the family and version of Anthropic's model of this name, in the form of any platform, such as
    `anthropic.claude-opus-4-6-v1:0`; None for one of others, or without a version.
    """
    match = _CLAUDE.search(model) if "claude" in model else None
    if match is None:
        return None
    family = match[3]
    major, minor = (match[1], match[2]) if match[1] else (match[4], match[5])
    if major is None:
        # Only Mythos Preview has a name without a number; it takes what version 5 does.
        return (family, (5, 0)) if family in _ALWAYS_THINK else None
    return family, (int(major), int(minor or 0))


def claude_always_thinks(model: str) -> bool:
    """Return whether a model is one of Anthropic's whose thinking cannot be switched off."""
    family, version = claude_version(model) or ("", (0, 0))
    return family in _ALWAYS_THINK or (family == "opus" and version >= (5, 5))


def claude_caches_from(model: str) -> int:
    """Return the least tokens of a beginning that Anthropic's model caches; 0 for a model of others."""
    named = claude_version(model)
    if named is None:
        return 0
    family, version = named
    if version >= (4, 8):
        return 512 if family not in ("sonnet", "haiku") and version >= (5, 0) else 1024
    if family == "opus" and version >= (4, 5):
        return 2048 if version == (4, 7) else 4096
    if family == "haiku":
        return 4096 if version >= (4, 5) else 2048
    return 1024
