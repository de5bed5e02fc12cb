"""Examine the semantic cache on held-out questions: `python -m tools.exam`. The exam is `tests/bench/exam`."""

from __future__ import annotations

import sys

from tests.bench.exam.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
