"""Provide the seam `archive`: where records are kept in files, and what these have."""

from __future__ import annotations

from pathlib import Path

from gateway.config.schema import Deployment
from gateway.parts.ledger.config import LedgerSections
from gateway.parts.ledger.older_records import has_files, kept_record, older_records

__all__ = ["archive_folder", "has_files", "keeps_archive", "kept_record", "older_records"]


def archive_folder(deployment: Deployment) -> Path | None:
    """Return the folder of the files that the config names; None for `ledger` in the state folder."""
    return deployment.of(LedgerSections).ledger.folder


def keeps_archive(deployment: Deployment) -> bool:
    """Return whether records are kept in files."""
    return bool(deployment.of(LedgerSections).ledger.keep)
