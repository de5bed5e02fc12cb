"""Policies: one YAML file per surface, their model and their loader.

`ADDED` holds who adds sections to policies, and helps to read them. This package knows nobody above it, so who has some
says so, once, when it is imported; they are asked for when the first policy is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(slots=True)
class AddedSections:
    """The hooks by which whoever adds sections to policies is asked for them, set once by the gateway."""

    find: Callable[[], tuple[type, ...]] = tuple
    """Returns the classes whose sections policies have too, each a `policies.sections.PolicySections`."""
    lacking: Callable[[], Mapping[str, str]] = dict
    """Returns why a policy cannot have some other sections here, by their names."""
    reading: Callable[[], Any] = lambda: None
    """Returns the module that says what to write instead of mistakes, and reads keys that were taken out; or None."""


ADDED: Final = AddedSections()
