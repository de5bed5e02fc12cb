"""Find a function that the config names, in a module of the user's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def hook_of(name: str) -> Callable[[str], Any]:
    """Return the function that `module:function` names. Raises ValueError, whose message ends a sentence."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"{name!r} is not of the form module:function")
    try:
        hook = getattr(importlib.import_module(module), function)
    except Exception as error:  # noqa: BLE001  (importing somebody else's module may raise anything)
        raise ValueError(f"{name!r} cannot be imported: {error}") from None
    if not callable(hook):
        raise ValueError(f"{name!r} is no function")
    return hook  # type: ignore[no-any-return]
