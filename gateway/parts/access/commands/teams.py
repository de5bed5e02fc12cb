"""Run `tierline teams`: give teams and tenants limits, budgets and what their keys may use."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, duration
from gateway.cli.store_flags import add_registry_flags
from gateway.exit_codes import Exit
from gateway.parts.access.author import add_change_flags
from gateway.parts.access.commands._owned import (
    NOBODY,
    add_terms_flags,
    changed_fields,
    lines_of,
    owner_name,
    terms_in_words,
    why_of,
    with_keys,
)
from gateway.parts.access.keys.key_caller import team_of
from gateway.parts.access.keys.records import OwnerRecord, public
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused
from gateway.report import NONE, WIDE, Report, printable, show, table

_KINDS: Final[dict[str, Literal["team", "tenant"]]] = {"team": "team", "tenant": "tenant"}


class _Named(NamedTuple):
    kind: Literal["team", "tenant"]
    name: str


def add_parser(subparsers: Subparsers) -> None:
    """Add `teams` and its actions to the command line."""
    actions = add_command(subparsers, "teams").add_subparsers(dest="action", metavar="ACTION", required=True)
    for action in ("create", "update", "show", "remove"):
        parser = add_command(actions, f"teams {action}")
        parser.add_argument("team", type=_named, metavar="TEAM")
        if action in ("create", "update"):
            add_terms_flags(parser, "surface", "tier")
            parser.add_argument("--longest-life", type=_life, metavar="TIME")
        (add_registry_flags if action == "show" else add_change_flags)(parser)
    add_registry_flags(add_command(actions, "teams list"))


def run(args: argparse.Namespace) -> int:
    """Run the chosen action. Raises CommandError and ConfigError."""
    if args.action == "list":
        _list(args)
        return Exit.OK
    work: dict[str, Callable[[KeyRegistry, OwnerRecord | None], Awaitable[OwnerRecord]]] = {
        "create": lambda registry, _: registry.put_owner(None, _changed(args, OwnerRecord(*args.team)), why_of(args)),
        "update": lambda registry, old: registry.put_owner(
            _there(args, old), _changed(args, _there(args, old)), why_of(args)
        ),
        "remove": lambda registry, old: _removed(registry, _there(args, old), args),
        "show": lambda _, old: _given(_there(args, old)),
    }

    async def act(registry: KeyRegistry) -> OwnerRecord:
        old = await registry.owner(*args.team)
        if args.action == "create" and old is not None:
            raise KeysRefused(f"there is a {old.kind} {old.name} already; `tierline teams update` changes it")
        return await work[args.action](registry, old)

    record = with_keys(args, act)
    head = f"{record.kind} {record.name}"
    done = {"create": " is made.", "update": " is changed. Every worker obeys within a second.", "show": ""}
    lines = [f"{head} has no terms in the store any more; its keys stay."] if args.action == "remove" else [
        f"{head}{done[args.action]}", *lines_of(replace(record, name=""))
    ]  # fmt: skip
    show(Report(public(record), lines), as_json=args.json)
    return Exit.OK


def _changed(args: argparse.Namespace, before: OwnerRecord) -> OwnerRecord:
    fields: dict[str, Any] = changed_fields(args, before)
    if args.longest_life is not None:
        fields["longest_life_s"] = None if args.longest_life == NOBODY else args.longest_life
    return replace(before, **fields)


def _there(args: argparse.Namespace, record: OwnerRecord | None) -> OwnerRecord:
    if record is None:
        raise CommandError(
            f"the store has no terms of {args.team.kind} {args.team.name}; `tierline teams create` makes some, and "
            "`tierline teams list` shows those that there are"
        )
    return record


async def _removed(registry: KeyRegistry, record: OwnerRecord, args: argparse.Namespace) -> OwnerRecord:
    await registry.remove_owner(record, why_of(args))
    return record


async def _given(record: OwnerRecord) -> OwnerRecord:
    return record


def _list(args: argparse.Namespace) -> None:
    owners = with_keys(args, lambda registry: registry.owners())
    rows = table("kind", "name", "limits", "each end user", "each session", "surfaces", "tiers", left=7)
    for one in owners:
        terms = [terms_in_words(terms) or NONE for terms in (one.terms, one.per_user, one.per_session)]
        rows.add_row(
            *map(printable, (one.kind, one.name, *terms, *(", ".join(x) or NONE for x in (one.surfaces, one.tiers))))
        )
    lines: list[Any] = [rows] if owners else ["No team and no tenant has terms; `tierline teams create` makes some."]
    show(Report({"teams": [public(owner) for owner in owners]}, lines, width=WIDE), as_json=args.json)


def _named(text: str) -> _Named:
    kind, colon, name = text.rpartition(":")
    if colon and kind not in _KINDS:
        raise argparse.ArgumentTypeError(f"{text!r}: write the name of a team, or tenant:NAME")
    owner, (tenant, slash, team) = _KINDS.get(kind, "team"), name.rpartition("/")
    if not slash or owner == "tenant":
        return _Named(owner, owner_name(name))
    return _Named(owner, team_of(owner_name(tenant), owner_name(team)))


def _life(text: str) -> float | str:
    return NOBODY if text == NOBODY else duration(text)
