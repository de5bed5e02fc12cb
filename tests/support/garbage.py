"""What a test leaves behind, apart from what others left before it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Fail if anything warns as it is collected at the block's end: an open socket, a coroutine never awaited.

    What earlier tests of this process left is collected before, in silence.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert not raised, [str(warning.message) for warning in raised]
