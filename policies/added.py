"""Hold who adds sections to policies. `policies` knows nobody above it, so who has some says so, once, when imported.

This imports nothing: the sections are asked for when the first policy is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

_find: Callable[[], tuple[type, ...]] = tuple
_lacking: Callable[[], Mapping[str, str]] = dict


def add_sections(find: Callable[[], tuple[type, ...]], lacking: Callable[[], Mapping[str, str]]) -> None:
    """Let policies have the sections of the classes that `find` returns, each a `policies.sections.PolicySections`.

    `lacking` returns why a policy cannot have some other sections here, by their names.
    """
    global _find, _lacking
    _find, _lacking = find, lacking


def added_sections() -> tuple[type, ...]:
    """Return the classes whose sections policies have too."""
    return _find()


def lacking_sections() -> Mapping[str, str]:
    """Return why a policy cannot have some sections here, by their names."""
    return _lacking()
