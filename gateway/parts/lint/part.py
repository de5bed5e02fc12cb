"""Provide the seam `reading` of `gateway.seams`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.parts.lint.taken_out import add_taken_out, without_taken_out

if TYPE_CHECKING:
    import yaml
    from pydantic import BaseModel

    from policies.errors import Edit, Finding, KeyPath
    from policies.yaml_source import Document

__all__ = ["add_taken_out", "foreign_word", "mend_of_value", "mend_of_yaml", "mended_key", "without_taken_out"]


def mend_of_value(
    path: KeyPath, value: Any, kind: str, context: Mapping[str, Any], message: str
) -> tuple[str, tuple[Edit, ...]]:
    """See `slips`, which is imported when a file has a mistake."""
    from gateway.parts.lint import slips

    return slips.mend_of_value(path, value, kind, context, message)


def mended_key(finding: Finding, model: type[BaseModel], document: Document) -> Finding:
    """See `slips`."""
    from gateway.parts.lint import slips

    return slips.mended_key(finding, model, document)


def mend_of_yaml(text: str, error: yaml.MarkedYAMLError) -> str:
    """See `slips`."""
    from gateway.parts.lint import slips

    return slips.mend_of_yaml(text, error)


def foreign_word(text: str) -> tuple[str, str, int, str | None] | None:
    """See `slips`."""
    from gateway.parts.lint import slips

    return slips.foreign_word(text)
