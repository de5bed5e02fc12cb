"""Provide the seam `lint` of `gateway.seams`."""

from __future__ import annotations

from gateway.parts.lint.codes import is_error
from gateway.parts.lint.warnings import findings_in

__all__ = ["findings_in", "is_error"]
