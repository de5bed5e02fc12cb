"""Read keys and words of policies that were taken out: for one release they do nothing, and lint names them (T109).

A policy that has one keeps its version, so that what was decided by it can be decided again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from policies.errors import Edit, Finding, KeyPath


class TakenOut(NamedTuple):
    """A key that was taken out, or one of its words."""

    at: KeyPath
    words: tuple[Any, ...]
    """The values that it is still read with."""
    usual: Any
    """The value of a policy that lacks the key, which is a part of its version; None if the key stays."""
    instead: str
    """The word that is read instead; '' where the key is left out."""
    message: str


TAKEN_OUT: Final = (
    TakenOut(
        ("escalate", "speculate", "during_lookup"),
        (True, False),
        False,
        "",
        "has no effect any more: a call can begin while the cross-encoder reads (during_check)",
    ),
    TakenOut(
        ("escalate", "stream", "on_break"),
        ("correct",),
        None,
        "continue",
        "correct is read as continue: another backend goes on with the text, and none begins anew behind a mark",
    ),
    TakenOut(
        ("cache", "replay"),
        ("at_once", "paced"),
        "at_once",
        "",
        "has no effect any more: a stored answer is streamed at once",
    ),
)


def taken_out_in(content: Any) -> Iterator[tuple[TakenOut, Any]]:
    """Yield each key or word of a policy's content that was taken out, with the value that it has there."""
    for one in TAKEN_OUT:
        section = _at(content, one.at[:-1])
        if isinstance(section, Mapping) and section.get(one.at[-1]) in one.words:
            yield one, section[one.at[-1]]


def without_taken_out(content: Any) -> Any:
    """Return a policy's content as it is read now."""
    for one, _ in taken_out_in(content):
        content = _put(content, one.at, one.instead)
    return content


def add_taken_out(canonical: dict[str, Any], content: Any) -> None:
    """Put into what a policy's version is the hash of what was a part of it before."""
    values = {one.at: one.usual for one in TAKEN_OUT if one.usual is not None}
    values |= {one.at: value for one, value in taken_out_in(content)}
    for at, value in values.items():
        _at(canonical, at[:-1])[at[-1]] = value


def lint_taken_out(content: Any) -> Iterator[Finding]:
    """Yield a finding for each key or word that was taken out."""
    for one, _ in taken_out_in(content):
        mend = f"write {one.instead}" if one.instead else "leave it out"
        yield Finding(one.at, one.message, "T109", mend, (Edit(one.at, one.instead or None),))


def _at(content: Any, path: KeyPath) -> Any:
    for part in path:
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def _put(content: Mapping[Any, Any], path: KeyPath, value: str) -> dict[Any, Any]:
    """Return the content with another value at a path; without that key if it is ''."""
    key, rest = path[0], path[1:]
    if rest:
        return {**content, key: _put(content[key], rest, value)}
    return {**content, key: value} if value else {name: part for name, part in content.items() if name != key}
