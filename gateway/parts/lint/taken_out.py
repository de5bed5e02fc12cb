"""Read keys and words of policies that were taken out: for one release they are accepted, and lint names them (T109).

They do nothing, but for `output.set` and `output.force`, which count at each tier of `tier_fields` that says no other.

A policy that has one keeps its version, so that what was decided by it can be decided again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from policies.errors import Edit, Finding, KeyPath
from policies.fields import REASONING


class TakenOut(NamedTuple):
    """A key that was taken out, or one of its words."""

    at: KeyPath
    words: tuple[Any, ...]
    """The values that it is still read with."""
    instead: str
    """The word that is read instead; '' where the key is left out."""
    message: str


TAKEN_OUT: Final = (
    TakenOut(
        ("escalate", "speculate", "during_lookup"),
        (True, False),
        "",
        "has no effect any more: a call can begin while the cross-encoder reads (during_check)",
    ),
    TakenOut(
        ("escalate", "stream", "on_break"),
        ("correct",),
        "continue",
        "correct is read as continue: another backend goes on with the text, and none begins anew behind a mark",
    ),
    TakenOut(
        ("cache", "replay"),
        ("at_once", "paced"),
        "",
        "has no effect any more: a stored answer is streamed at once",
    ),
)


def taken_out_in(content: Any) -> Iterator[tuple[TakenOut, Any]]:
    """Yield each key or word of a policy's content that was taken out, with the value that it has there."""
    for key in TAKEN_OUT:
        section = _at(content, key.at[:-1])
        if isinstance(section, Mapping) and section.get(key.at[-1]) in key.words:
            yield key, section[key.at[-1]]


def without_taken_out(content: Any) -> Any:
    """Return a policy's content as it is read now."""
    for key, _ in taken_out_in(content):
        content = _put(content, key.at, key.instead)
    return _with_fields_at_tiers(content)


def add_taken_out(canonical: dict[str, Any], content: Any) -> None:
    """Put what a policy's content has of these keys into what its version is the hash of."""
    for key, value in taken_out_in(content):
        _at(canonical, key.at[:-1])[key.at[-1]] = value
    if written := {how: values for how, values in _set_in_output(content).items() if values}:
        canonical["output"] |= written
        canonical.pop("tier_fields", None)
        if fields := content.get("tier_fields"):
            own = [[tier, {how: values for how, values in at.items() if values}] for tier, at in fields.items()]
            canonical["tier_fields"] = own


def lint_taken_out(content: Any) -> Iterator[Finding]:
    """Yield a finding for each key or word that was taken out."""
    for key, _ in taken_out_in(content):
        mend = f"write {key.instead}" if key.instead else "leave it out"
        yield Finding(key.at, key.message, "T109", mend, (Edit(key.at, key.instead or None),))

    for how in _set_in_output(content):
        message = f"output no longer sets fields: they are read as {how} of every tier that says no other"
        mend = f"write them in tier_fields, at the tiers that they are for, or as {how} of a backend in the config"
        yield Finding(("output", how), message, "T109", mend)


def _set_in_output(content: Any) -> dict[str, Mapping[str, Any]]:
    """Return what `output` sets in a policy's content, by `set` and `force`."""
    output = _at(content, ("output",))
    found = {how: output.get(how) for how in ("set", "force")} if isinstance(output, Mapping) else {}
    return {how: values for how, values in found.items() if isinstance(values, Mapping)}


def _with_fields_at_tiers(content: Any) -> Any:
    """Return a policy's content with what `output` sets at each of its tiers; a tier's own fields count first."""
    common, tiers = _set_in_output(content), _at(content, ("tiers",))
    own = _at(content, ("tier_fields",)) or {}
    if not common or not isinstance(own, Mapping):
        return content
    fields = dict(own)
    if any(common.values()):
        for tier in tiers if isinstance(tiers, list) else ():
            if isinstance(mine := own.get(tier, {}), Mapping):
                said = {how: mine.get(how) or {} for how in ("set", "force")}
                fields[tier] = {**mine, **{how: _joined(common.get(how, {}), said[how]) for how in said}}
    left = {name: value for name, value in content["output"].items() if name not in common}
    return {**content, "output": left, **({"tier_fields": fields} if fields else {})}


def _joined(common: Mapping[str, Any], own: Any) -> Any:
    if not isinstance(own, Mapping):
        return own
    reasons = not REASONING.isdisjoint(own)
    return {**{name: value for name, value in common.items() if not (reasons and name in REASONING)}, **own}


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
