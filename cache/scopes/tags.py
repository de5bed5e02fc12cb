"""Tags: what an answer was drawn from, so that it goes when its source changes.

A request names its sources in `x-tierline-cache-tags: doc:42, doc:43`, and a policy may name more (`cache.tags`). Each
scope has one hash, of the tags that were ever purged in it and the version each has since. An entry keeps the versions
that its tags had before its model was asked, and is a miss as soon as one has moved: an answer that was being written
while its source changed is never served. The versions are read together with the entry, in one round trip; requests
and entries without tags read nothing more than before.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from cache.store.base import Command
from policies.caching import TAG, TAGS_AT_MOST

Versions = tuple[tuple[str, str], ...]
"""Tags, sorted, each with its version; '' for one that was never purged."""


class BadTags(ValueError):
    """The tags of a request cannot be meant. The message says what tags are."""

    def __init__(self) -> None:
        super().__init__(
            f"takes up to {TAGS_AT_MOST} tags with commas between, each of 1 to 64 letters, digits or ._:/@+#=-"
        )


class Tags:
    """The tags of one request, and their versions once they were read: before any model was asked."""

    __slots__ = ("names", "versions")

    def __init__(self, names: Sequence[str]) -> None:
        self.names: Final = tuple(sorted(set(names)))
        self.versions: Versions | None = None

    def seen(self, reply: object) -> Versions:
        """The versions in a reply to `versions_of` these names. The first ones seen are those of an answer to come."""
        now = paired(self.names, reply)
        if self.versions is None:
            self.versions = now
        return now


def parse(header: bytes) -> tuple[str, ...]:
    """The tags in a header; raises BadTags."""
    names = [part.strip() for part in header.decode("latin-1").split(",")]
    if len(names) > TAGS_AT_MOST or not all(map(TAG.fullmatch, names)):
        raise BadTags
    return tuple(names)


def moved(kept: Versions, now: Versions) -> bool | None:
    """Whether a tag has been purged since its entry was made; None where `now` does not know all of them."""
    if not kept:
        return False
    known = dict(now)
    if any(tag not in known for tag, _ in kept):
        return None
    return any(known[tag] != version for tag, version in kept)


def table_of(prefix: str) -> str:
    """The hash of a scope's tags."""
    return f"{prefix}:tags"


def versions_of(prefix: str, names: Sequence[str]) -> Command:
    """Asks a scope's hash for the versions of tags, in this order."""
    return Command((b"HMGET", table_of(prefix).encode(), *(name.encode() for name in names)))


def purged(prefix: str, name: str) -> Command:
    """Gives a tag a version that it never had."""
    return Command((b"HSET", table_of(prefix).encode(), name.encode(), secrets.token_hex(8).encode()))


def paired(names: Sequence[str], reply: object) -> Versions:
    """Tags and the versions in a reply to `versions_of` them."""
    found = reply if isinstance(reply, list) else ()
    return tuple((name, version.decode() if version else "") for name, version in zip(names, found, strict=False))
