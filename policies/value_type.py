"""Declare values that are made for each request: no field of theirs is set again, which mypy checks.

A frozen dataclass checks it at run time, and takes five times as long to construct. Unlike one, these values cannot be
hashed. All packages may import this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
N = TypeVar("N", bound=tuple[Any, ...])


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_type(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots whose fields type checkers hold frozen."""
    return dataclass(slots=True)(cls)


def from_fields(cls: type[N]) -> Callable[[tuple[Any, ...]], N]:
    """Return a function that makes a NamedTuple of all its fields: in C, where the type itself is a call of Python.

    For what is made many times per request, or for each chunk of a stream.
    """
    return partial(tuple.__new__, cls)
