"""Provide the seam `archive`: where records are kept in files."""

from __future__ import annotations

from pathlib import Path

from gateway.config.schema import Deployment
from gateway.parts.ledger.config import LedgerSections


def archive_folder(deployment: Deployment) -> Path | None:
    """Return the folder of the files that the config names; None for `ledger` in the state folder."""
    return deployment.of(LedgerSections).ledger.folder


def keeps_archive(deployment: Deployment) -> bool:
    """Return whether records are kept in files."""
    return bool(deployment.of(LedgerSections).ledger.keep)
