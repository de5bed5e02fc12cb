"""Tag entries with the sources of their answers, so that an entry is dropped when its source changes.

A request names its sources in `x-tierline-cache-tags: doc:42, doc:43`, and a policy may name more (`cache.tags`). Each
scope has one hash, from every tag that was ever purged in it to the tag's version since. An entry stores the versions
that its tags had before its model was called, and is a miss as soon as one has changed: an answer that was being
written while its source changed is never served. The versions are read together with the entry, in one round trip;
requests and entries without tags need no additional read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cache.store.base import Command
from policies.caching import TAG, TAGS_AT_MOST

Versions = tuple[tuple[str, str], ...]
"""Tags, sorted, each with its version; '' for a tag that was never purged."""


class BadTags(ValueError):
    """A request's tags are malformed. The message describes the format."""

    def __init__(self) -> None:
        super().__init__(
            f"takes up to {TAGS_AT_MOST} tags with commas between, each of 1 to 64 letters, digits or ._:/@+#=-"
        )


class Tags:
    """The tags of one request, and their versions as read before any model was called."""

    __slots__ = ("names", "versions")

    def __init__(self, names: Sequence[str]) -> None:
        self.names: Final = tuple(sorted(set(names)))
        self.versions: Versions | None = None

    def seen(self, reply: object) -> Versions:
        """Return the versions in a reply to `versions_of` these names; the first ones read are kept for the answer."""
        now = paired(self.names, reply)
        if self.versions is None:
            self.versions = now
        return now


def parse(header: bytes) -> tuple[str, ...]:
    """Parse the tags in a header. Raises BadTags."""
    names = [part.strip() for part in header.decode("latin-1").split(",")]
    if len(names) > TAGS_AT_MOST or not all(map(TAG.fullmatch, names)):
        raise BadTags
    return tuple(names)


def moved(stored: Versions, now: Versions) -> bool | None:
    """Return whether a tag was purged since its entry was made; None if `now` lacks one of the tags."""
    if not stored:
        return False
    versions = dict(now)
    if any(tag not in versions for tag, _ in stored):
        return None
    return any(versions[tag] != version for tag, version in stored)


def table_of(prefix: str) -> str:
    """Return the key of the hash of a scope's tags."""
    return f"{prefix}:tags"


def versions_of(prefix: str, names: Sequence[str]) -> Command:
    """Return the command that reads the versions of tags in a scope, in this order."""
    return Command((b"HMGET", table_of(prefix).encode(), *(name.encode() for name in names)))


def paired(names: Sequence[str], reply: object) -> Versions:
    """Pair tags with the versions in a reply to `versions_of` them."""
    versions = reply if isinstance(reply, list) else ()
    return tuple((name, version.decode() if version else "") for name, version in zip(names, versions, strict=False))
