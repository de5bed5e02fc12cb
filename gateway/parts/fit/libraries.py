"""Use the libraries of the extras `train` and `export`, or say how to install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

_INSTALL = "run: make tools (or pip install 'tierline[train]')"


class LibraryMissing(RuntimeError):
    """A library of an extra is not installed; the message says how to install it."""


def require(library: str, what: str, hint: str = "", install: str = _INSTALL) -> None:
    """Raise LibraryMissing if `library` is not installed; the message begins with `what` needs it."""
    try:
        import_module(library)
    except ImportError:
        raise LibraryMissing(f"{what}; {install}{hint}") from None


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread: sums are always computed in the same order, and small matrices are faster, too.

    Raises LibraryMissing if scikit-learn is not installed.
    """
    require("sklearn", "fitting needs scikit-learn")
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(limits=1):
        yield
