from __future__ import annotations

from tests.policies.conftest import write

__all__ = ["write"]
