"""List, make and change keys, and the limits of teams and tenants: what their pages do, without how they look."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.config.schema import DEFAULT_TENANT
from gateway.errors import ApiError, NotFound
from gateway.parts.access.audit.trail import AuditTrail, TrailFilter
from gateway.parts.access.config import AccessSections
from gateway.parts.access.keys.budgets import BudgetStanding, Owned, OwnerBudgets
from gateway.parts.access.keys.known_keys import configured_owners
from gateway.parts.access.keys.made_keys import change_key, check_owner, make_key, rotate_key
from gateway.parts.access.keys.records import STATE_AFTER, KeyRecord, OwnerRecord, state_at
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused, Why
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.keys.self_service import NotAllowed, may_with, may_with_owner
from gateway.parts.access.pages.key_forms import (
    NotChanged,
    form_of_record,
    key_in,
    limits_in_words,
    owner_in,
    seconds_of_grace,
)
from gateway.parts.access.quotas.terms import Terms

if TYPE_CHECKING:
    from gateway.seams import ConsoleShell

_PAGE: Final = 50
_HISTORY: Final = 20
_DONE: Final = {"disable": "It is disabled.", "enable": "It is active again.", "revoke": "It is revoked."}
_LAST: Final = (
    """SELECT "key" AS id, max(started_s) AS at FROM requests WHERE list_contains($ids, "key") GROUP BY ALL"""
)
KINDS: Final = ("team", "tenant")


class NoSuchKey(NotFound):
    """There is no such key or owner of limits, or the person may not see it; the message says what to do."""

    title = "Nothing of that name"


class KeyDesk:
    """Show, make and change keys and owners for a person. What changes something raises NotChanged.

    All of it raises StoreUnavailable; what is about one key or owner NoSuchKey too.
    """

    def __init__(self, shell: ConsoleShell) -> None:
        self._ask, store = shell.ask, shell.store
        config = shell.deployment.of(AccessSections)
        self._configured = configured_owners(config.teams, config.tenants)
        self._budgets = OwnerBudgets(store)
        self._registry = KeyRegistry(store, durable=True)
        self._trail = AuditTrail(store)

    async def listed(self, person: Person, query: str, state: str, after: str) -> dict[str, Any]:
        """Return a page of the keys that a person may see and that fit, newest first."""
        now, text = time.time(), query.casefold()

        def wanted(key: KeyRecord) -> bool:
            fields = (key.id, key.name, key.owner, key.team, key.tenant)
            fits = may_with(person, "keys.see", key) and state in ("", state_at(key, now))
            return fits and any(text in field.casefold() for field in fields)

        all_of_them = person.is_admin and not query and not state
        team = person.teams[0] if len(person.teams) == 1 and not person.grants else ""
        with _refusals_told(NoSuchKey):
            page = await self._registry.page(after, _PAGE, team=team, wanted=None if all_of_them else wanted)
        return {"keys": await self._shown(page.keys, now), "older": page.older, "cut": page.cut}

    async def key(self, person: Person, name: str) -> KeyRecord:
        """Return a key that the person may see."""
        with _refusals_told(NoSuchKey):
            key = await self._registry.find(name)
        if not may_with(person, "keys.see", key):
            raise NoSuchKey(f"there is no key {name!r} that you may see")
        return key

    async def key_page(self, person: Person, key: KeyRecord) -> dict[str, Any]:
        """Return what a key's page shows."""
        history = await self._trail.page(TrailFilter("key", subject=key.id), "", _HISTORY)
        [shown] = await self._shown([key], time.time())
        return {
            "key": shown, "history": history["entries"], "form": form_of_record(key),
            "may_change": may_with(person, "keys.change", key), "may_rotate": may_with(person, "keys.rotate", key),
        }  # fmt: skip

    async def make(self, person: Person, form: Mapping[str, str]) -> tuple[dict[str, Any], str]:
        """Make the key of a form; return what is shown of it, and the key itself."""
        now = time.time()
        tenant = form.get("tenant", "").strip() or person.tenant or DEFAULT_TENANT
        wanted = key_in(form, KeyRecord("", "", tenant, form.get("team", "").strip()), now)
        with _refusals_told():
            record, secret = await make_key(self._registry, person, wanted, _why(person, form, "create"))
        [shown] = await self._shown([record], now)
        return shown, secret

    async def rotate(
        self, person: Person, key: KeyRecord, form: Mapping[str, str]
    ) -> tuple[dict[str, Any], str, float]:
        """Give a key a new secret; return what is shown of it, the key itself, and until when the old one is valid."""
        now, grace_s = time.time(), seconds_of_grace(form.get("grace", ""))
        with _refusals_told():
            record, secret = await rotate_key(self._registry, person, key, grace_s, _why(person, form, "rotate"))
        [shown] = await self._shown([record], now)
        return shown, secret, min(now + grace_s, key.expires or now + grace_s)

    async def change(self, person: Person, key: KeyRecord, form: Mapping[str, str]) -> str:
        """Change a key's state or its fields by a form; return what was done, in words."""
        do = form.get("do", "")
        if form.get("revision") != str(key.revision):
            raise NotChanged("It was changed meanwhile: look at it again, and change it then.")
        if do == "revoke" and not form.get("sure"):
            raise NotChanged("Revoking is for ever: mark that it is, or disable the key.")
        if do in _DONE:
            after, said = replace(key, state=STATE_AFTER[do]), _DONE[do]
        elif do == "change":
            after, said = key_in(form, key, time.time()), "It is changed."
        else:
            raise NotChanged("Reload this page: it is of another version.")
        with _refusals_told():
            await change_key(self._registry, person, key, after, _why(person, form, "update" if do == "change" else do))
        return said

    async def owners(self, person: Person) -> list[dict[str, Any]]:
        """Return the teams and tenants of the store and of the config that the person may see."""
        stored = {f"{owner.kind}:{owner.name}": owner for owner in await self._registry.owners()}
        found = [owner for _, owner in sorted({**self._configured, **stored}.items()) if _may_see(person, owner)]
        spent = await self._spent([((owner.kind, owner.name), owner.terms) for owner in found])
        return [
            {"kind": owner.kind, "name": owner.name, "limits": limits_in_words(owner.terms), "budgets": budgets}
            for owner, budgets in zip(found, spent, strict=True)
        ]

    async def owner(self, person: Person, kind: str, name: str) -> OwnerRecord:
        """Return a team or tenant that the person may see; of revision 0 where only the config has it, or nothing."""
        with _refusals_told(NoSuchKey):
            check_owner(kind, name)
        if kind not in KINDS:
            raise NoSuchKey(f"{kind!r} has no limits; there are {' and '.join(KINDS)}")
        of: Literal["team", "tenant"] = "team" if kind == "team" else "tenant"
        configured = self._configured.get(f"{kind}:{name}", OwnerRecord(of, name))
        owner = await self._registry.owner(of, name) or replace(configured, revision=0)
        if not _may_see(person, owner):
            raise NoSuchKey(f"there is no {kind} {name!r} that you may see")
        return owner

    async def owner_page(self, person: Person, owner: OwnerRecord) -> dict[str, Any]:
        """Return what the page of a team or a tenant shows."""
        [budgets] = await self._spent([((owner.kind, owner.name), owner.terms)])
        shown = {"kind": owner.kind, "name": owner.name, "revision": owner.revision, "budgets": budgets}
        shown["configured"] = not owner.revision and f"{owner.kind}:{owner.name}" in self._configured
        return {"owner": shown, "form": form_of_record(owner), "may_change": _may_set(person, owner)}

    async def set_owner(self, person: Person, owner: OwnerRecord, form: Mapping[str, str]) -> str:
        """Set or remove the limits of a team or a tenant by a form; return what was done, in words."""
        if not _may_set(person, owner):
            raise NotChanged("You may look, and may not change limits of teams. An admin can give you a role.")
        if form.get("revision") != str(owner.revision):
            raise NotChanged("It was changed meanwhile: look at it again, and change it then.")
        removes = form.get("do") == "remove"
        if removes and not form.get("sure"):
            raise NotChanged("Mark that its keys are not limited together any more.")
        before = owner if owner.revision else None
        with _refusals_told():
            if removes:
                await self._registry.remove_owner(owner, _why(person, form))
            else:
                await self._registry.put_owner(before, owner_in(form, owner), _why(person, form))
        return "Its limits are removed." if removes else "Its limits are set."

    async def _shown(self, keys: Sequence[KeyRecord], now: float) -> list[dict[str, Any]]:
        """Return what pages show of keys: nothing that a key could be tested by."""
        used = await self._last_used([key.id for key in keys])
        spent = await self._spent([(("key", key.id), key.terms) for key in keys])
        names = ("id", "name", "team", "owner", "tenant", "expires", "created", "created_by", "revision")
        return [
            {
                **{name: getattr(key, name) for name in names}, "state": state_at(key, now), "budgets": budgets,
                "limits": limits_in_words(key.terms), "last_used": None if used is None else used.get(key.id, 0.0),
            }
            for key, budgets in zip(keys, spent, strict=True)
        ]  # fmt: skip

    async def _last_used(self, ids: Sequence[str]) -> Mapping[str, float] | None:
        """Return when each key was used last, as far as the ledger goes back; None if that cannot be read."""
        try:
            return {row["id"]: row["at"] for row in await self._ask(_LAST, {"ids": list(ids)})} if ids else {}
        except ApiError:
            return None

    async def _spent(self, owners: Sequence[tuple[Owned, Terms]]) -> list[list[dict[str, Any]]]:
        """Return the budgets of each owner, as the counters that requests are held to have them."""
        return [[_budget(standing) for standing in some] for some in await self._budgets.of_terms(owners)]


def _budget(standing: BudgetStanding) -> dict[str, Any]:
    budget = standing.account.budget
    return {**standing.shown(), "per": budget.per if budget else "", "zone": budget.zone if budget else ""}


@contextlib.contextmanager
def _refusals_told(kind: type[Exception] = NotChanged) -> Iterator[None]:
    """Raise what the registry and the rules refuse as the error of a form, or of a page."""
    try:
        yield
    except (NotAllowed, KeysRefused) as error:
        raise kind(str(error)) from None


def _why(person: Person, form: Mapping[str, str], action: str = "") -> Why:
    return Why(person.author(), form.get("message", "").strip()[:500], "console", action)


def _may_see(person: Person, owner: OwnerRecord) -> bool:
    return may_with_owner(person, "teams.see", owner)


def _may_set(person: Person, owner: OwnerRecord) -> bool:
    return may_with_owner(person, "teams.change", owner)
