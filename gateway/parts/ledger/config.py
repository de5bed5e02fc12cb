"""Define the config of the ledger in files."""

from __future__ import annotations

from typing import Final

from gateway.config.notations import OptionalPath, Positive, Size
from gateway.config.sections import Sections
from policies.validation import Seconds, Section


class LedgerConfig(Section):
    """The ledger in files, which `tierline up` writes, or `tierline ledger keep`. Never a gateway worker."""

    keep: Seconds = 30 * 86400.0
    """Age in seconds from which records are deleted; 0 writes none at all."""
    folder: OptionalPath = None
    """Where the files are; None for `ledger` in the state folder."""
    rotate_after: Positive = 3600.0
    """Age in seconds at which the hot file becomes a Parquet segment."""
    rotate_size: Size = 64 << 20
    """Size in bytes at which it does so before that."""


class LedgerSections(Sections):
    """The config's section `ledger`."""

    ledger: LedgerConfig = LedgerConfig()


SECTIONS: Final = LedgerSections
