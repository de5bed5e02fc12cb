"""Provide the seams `authenticator`, `limits`, `admin_port`, `audit` and `pages` (`gateway.seams`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.config.environment import write_private
from gateway.parts.access.admission import QuotaAdmission
from gateway.parts.access.audit.config_changes import note_file
from gateway.parts.access.authenticator import KeyAuthenticator
from gateway.parts.access.budget_steering import MeasuredCaps
from gateway.parts.access.config import AccessSections
from gateway.parts.access.expected_costs import ExpectedCosts
from gateway.parts.access.metrics import LimitMetrics
from gateway.parts.access.quotas.alerts import BudgetAlerts, webhook_key
from gateway.parts.access.quotas.kept_charges import KeptCharges
from gateway.parts.access.quotas.leases import QuotaLeases
from gateway.parts.access.quotas.spent_copies import SpentCopies

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI

    from cache.store.base import Store
    from gateway.seams import ConsoleShell
    from gateway.steps import Core, Steps


def build_authenticator(core: Core) -> KeyAuthenticator:
    """Return what knows who sends a worker's requests, which is not started."""
    return KeyAuthenticator(core.deployment, core.store)


async def note_config(store: Store, file: Path) -> None:
    """Append to the audit trail which keys of the config's file have changed; without a store, do nothing."""
    await note_file(store, file)


def build_admin_port(steps: Steps) -> FastAPI:
    """Return the application of the admin port. Imports FastAPI."""
    from gateway.parts.access.admin_api import admin_api

    return admin_api(steps)


def build_limits(core: Core) -> QuotaAdmission:
    """Return a worker's limits, which are not started."""
    deployment, store, counted = core.deployment, core.store, LimitMetrics(core.metrics)
    state, url = deployment.embedding.state, deployment.store.url
    copies = SpentCopies(store, SpentCopies.file_in(state, url or ""), write_private)
    config = deployment.of(AccessSections)
    leases = QuotaLeases(store, when_down=config.keys.when_store_is_down, copies=copies)
    told = config.alerts
    secret = b"" if told.secret is None else webhook_key(told.secret.get_secret_value())
    alerts = BudgetAlerts(store, counted.alert, shares=told.shares, webhook=told.webhook or "", secret=secret)
    leases.on_spent = alerts.note
    counted.watch(alerts.highest)
    return QuotaAdmission(
        leases,
        config.keys,
        counted.refused,
        MeasuredCaps(store, core.tiers),
        ExpectedCosts(core.tiers),
        alerts,
        # Without a store, this process alone counts.
        None if url is None else KeptCharges(state, store, deployment.telemetry.keep, leases.worker),
    )


def add_pages(shell: ConsoleShell) -> None:
    """Add the pages of keys, teams and tenants to the console."""
    from gateway.parts.access.pages.budget_desk import BudgetDesk
    from gateway.parts.access.pages.key_desk import KeyDesk
    from gateway.parts.access.pages.keys import add_key_pages
    from gateway.parts.access.pages.teams import add_team_pages

    desk, budgets = KeyDesk(shell), BudgetDesk(shell.store, shell.deployment)
    add_key_pages(shell, desk, budgets)
    add_team_pages(shell, desk, budgets)
