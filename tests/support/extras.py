"""Optional packages that tests need."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(package: str, reason: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests where a package is missing.

    It is looked for and not imported: scikit-learn takes three seconds, which every pytest process would pay before
    its first test.
    """
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)
