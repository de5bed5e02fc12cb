"""Share what `tierline keys` and `tierline teams` have in common: their options, the store, and how records look."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from gateway.cli.commands import CommandError
from gateway.cli.flags import duration, whole
from gateway.cli.store_flags import with_store
from gateway.parts.access.author import author_of
from gateway.parts.access.config import NAME
from gateway.parts.access.keys.records import KeyRecord, OwnerRecord, public
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused, Why
from gateway.parts.access.keys.self_service import NotAllowed
from gateway.parts.access.quotas.terms import NO_TERMS, Budget, Terms
from gateway.report import printable

T = TypeVar("T")
_COUNTS: Final = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute", "concurrent": "concurrent"}
_WHOSE: Final = {"": "terms", "user-": "per_user", "session-": "per_session"}
"""Beginnings of the options of terms, by the records' fields."""
_LISTS: Final = {"surface": "surfaces", "tier": "tiers", "model": "models"}
NOBODY: Final = "none"
"""Said for an option, it takes away what is set."""


def add_terms_flags(parser: argparse.ArgumentParser, *lists: str) -> None:
    """Add the options of limits and budgets, of metadata, and those of `lists` of surface, tier and model."""
    for whose, of in (("", ""), ("user-", "each end user: "), ("session-", "each session: ")):
        budget = f"{of}dollars by calendar window, such as 25/month or 5/day@Europe/Berlin; repeatable; `none`"
        parser.add_argument(
            f"--{whose}budget", action="append", type=_or_none(Budget.read), metavar="USD/PER", help=budget
        )
        for name, field in _COUNTS.items():
            what = f"{of}most {field.replace('_', ' ').replace('concurrent', 'requests at once')}; `none`"
            parser.add_argument(f"--{whose}{name}", type=_or_none(whole(1)), metavar="N", help=what)
    for name in lists:
        what = f"a {name} that may be used, and no other; repeatable; `none` for any"
        parser.add_argument(f"--{name}", action="append", metavar="NAME", help=what)
    what = "free metadata; repeatable; an empty VALUE takes NAME away"
    parser.add_argument("--metadata", action="append", type=_pair, metavar="NAME=VALUE", help=what)


def changed_fields(args: argparse.Namespace, before: KeyRecord | OwnerRecord | None) -> dict[str, Any]:
    """Return the fields of a record that the options of `add_terms_flags` set. Raises CommandError."""
    given: dict[str, Any] = {}
    for whose, field in _WHOSE.items():
        terms: Terms = NO_TERMS if before is None else getattr(before, field)
        values = {name: getattr(terms, name) for name in Terms.model_fields}
        said = {of: getattr(args, f"{whose}{name}".replace("-", "_")) for name, of in _COUNTS.items()}
        said["budgets"] = getattr(args, f"{whose}budget".replace("-", "_"))
        if any(value is not None for value in said.values()):
            values |= {name: _without_none(value) for name, value in said.items() if value is not None}
            try:
                given[field] = Terms.model_validate(values)
            except ValueError as error:
                raise CommandError(str(error).splitlines()[-2].strip().removeprefix("Value error, ")) from None
    for name, field in _LISTS.items():
        if (names := getattr(args, name, None)) is not None:
            given[field] = () if names == [NOBODY] else tuple(dict.fromkeys(names))
    if args.metadata is not None:
        metadata = {**({} if before is None else before.metadata), **dict(args.metadata)}
        given["metadata"] = {name: value for name, value in metadata.items() if value}
    return given


def expiry(text: str) -> float | None:
    """Parse when a key ends: after a time such as 90d, at the end of a day such as 2027-01-31 (UTC), or `never`."""
    if text == "never":
        return None
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        try:
            return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp() + 86400
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return time.time() + duration(text)


def owner_name(text: str) -> str:
    """Parse the name of a team or a tenant."""
    if not re.fullmatch(NAME, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name: write a-z, 0-9 and _.-, a letter or digit first")
    return text


def why_of(args: argparse.Namespace, action: str = "") -> Why:
    """Return who makes the change and why."""
    return Why(author_of(args), args.message, "cli", action)


def with_keys(args: argparse.Namespace, work: Callable[[KeyRegistry], Awaitable[T]]) -> T:
    """Return what `work` returns. Raises CommandError if the store does not answer or the registry refuses."""

    return with_store(args, lambda store: work(KeyRegistry(store, durable=True)), KeysRefused, NotAllowed)


def lines_of(record: KeyRecord | OwnerRecord) -> Iterator[str]:
    """Yield a record as lines for people."""
    for name, value in public(record).items():
        if name not in ("id", "kind", "revision"):
            text = terms_in_words(getattr(record, name)) if name in _WHOSE.values() else _in_words(name, value)
            yield f"  {name.replace('_', ' '):<16} {printable(text)}"


def _in_words(name: str, value: Any) -> str:
    if name in ("expires", "created"):
        return day(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={member}" for key, member in value.items())
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def terms_in_words(terms: Terms) -> str:
    """Return limits and budgets on one line."""
    words = {"rpm": terms.requests_per_minute, "tpm": terms.tokens_per_minute, "at once": terms.concurrent}
    counts = [f"{count} {unit}" for unit, count in words.items() if count is not None]
    return ", ".join([*(f"${budget.text}" for budget in terms.budgets), *counts])


def day(at: float | None) -> str:
    """Return a time in UTC to the minute; `never` for None."""
    return "never" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text == NOBODY:
            return NOBODY
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _without_none(value: Any) -> Any:
    if isinstance(value, list):
        return [name for name in value if name != NOBODY]
    return None if value == NOBODY else value


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value
