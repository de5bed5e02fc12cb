"""Provide the seams `cache_admin`, `admin_routers` and `tasks` of `gateway.seams`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.parts.cache_admin import store_room
from gateway.parts.cache_admin.administration import Administration, Tidying

if TYPE_CHECKING:
    from fastapi import APIRouter

    from cache.store.base import Store
    from gateway.steps import Core

cut_down_quotas = store_room.cut_down_quotas


def build_store_room(core: Core) -> store_room.DividedStore:
    """Return what fits the quotas into the store's memory."""
    return store_room.DividedStore(core.store, core.deployment, lambda: core.policies.current, core.quotas)


async def remove_wrong(
    store: Store, entry_id: str, surface: str, owners: Sequence[str], created_at: float | None
) -> str:
    """Delete an entry that was wrongly served, with its copies; return its id, '' if it is gone.

    Raises StoreUnavailable.
    """
    removed = await Administration(store).remove_wrong(entry_id, surface, owners, created_at)
    return "" if removed is None else removed.id


def admin_routers() -> list[APIRouter]:
    """Return the admin API of the cache."""
    from gateway.parts.cache_admin.routes import router  # FastAPI is slow to import, and most workers need none

    return [router]


def build_tasks(core: Core) -> Mapping[str, Tidying]:
    """Return what removes scopes that hold nothing from the list of them."""
    return {"cache tidying": Tidying(core.store)}
