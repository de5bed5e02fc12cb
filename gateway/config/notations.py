"""Notations of a config's values: each a type with what it refuses, in the words of whoever wrote the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.config.addresses import check_http_url
from policies.quantities import read_size
from policies.validation import Seconds, Whole


def _none_if_empty(value: object) -> object:
    """Turn '' into None: `${VAR:-}` gives an empty string if the variable is not set."""
    return None if value == "" else value


def _base_url(value: str) -> str:
    """Return a backend's or a service's URL without a slash at the end; '' is none yet. Raises ValueError."""
    if value:
        check_http_url(value)
    return value.rstrip("/")


def text_checked(check: Callable[[str], object]) -> AfterValidator:
    """Return a validator of optional texts that `check` raises ValueError for."""

    def checked(value: str | None) -> str | None:
        if value is not None:
            check(value)
        return value

    return AfterValidator(checked)


Size = Annotated[int, BeforeValidator(read_size), Field(ge=1)]
Count = Annotated[Whole, Field(ge=1)]
OptionalCount = Annotated[Count | None, BeforeValidator(_none_if_empty)]
Port = Annotated[Whole, Field(ge=0, le=65535)]
Positive = Annotated[Seconds, Field(gt=0)]
Words = Annotated[str, Field(min_length=1)]
BaseUrl = Annotated[str, AfterValidator(_base_url)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
OptionalPath = Annotated[Path | None, BeforeValidator(_none_if_empty)]
OptionalText = Annotated[str | None, BeforeValidator(_none_if_empty)]
