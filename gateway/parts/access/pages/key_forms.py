"""Read the forms of keys and owners of limits, and write records into forms: what a person types for each field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from gateway.parts.access.keys.records import KeyRecord, OwnerRecord
from gateway.parts.access.quotas.terms import Budget, Terms
from policies.quantities import read_duration, write_duration

_COUNTS: Final = ("requests_per_minute", "tokens_per_minute", "concurrent")
_PREFIXES: Final = {"terms": "", "per_user": "per_user_", "per_session": "per_session_"}
"""Beginnings of the names of a form's fields, by the records' fields."""
_NAMES: Final = ("surfaces", "tiers", "models")
_MOST_TEXT: Final = 200
_LONGEST_S: Final = 100 * 365 * 86400.0


class NotChanged(Exception):
    """A form that cannot be done; the message says what to change in it."""


def key_in(form: Mapping[str, str], base: KeyRecord, now: float) -> KeyRecord:
    """Return `base` with what a form says of it. Raises NotChanged."""
    texts: dict[str, Any] = {name: _text(form, name) for name in ("name", "owner", "default_surface")}
    new = replace(base, **texts, **_names(form, _NAMES), **_terms(form))
    return replace(new, expires=_expiry(_text(form, "expires"), base.expires, now))


def owner_in(form: Mapping[str, str], base: OwnerRecord) -> OwnerRecord:
    """Return `base` with what a form says of it. Raises NotChanged."""
    life = _text(form, "longest_life")
    return replace(
        base, **_names(form, ("surfaces", "tiers")), **_terms(form), longest_life_s=_seconds(life) if life else None
    )


def form_of_record(record: KeyRecord | OwnerRecord | None) -> dict[str, str]:
    """Return the fields of a form that shows a record, or an empty one."""
    names = ("name", "team", "owner", "tenant", "expires", "default_surface", "message", "longest_life", *_NAMES)
    form = dict.fromkeys(names, "")
    for field, prefix in _PREFIXES.items():
        terms: Terms | None = getattr(record, field, None)
        form |= {f"{prefix}{name}": str((terms and getattr(terms, name)) or "") for name in _COUNTS}
        form[f"{prefix}budgets"] = ", ".join(budget.text for budget in terms.budgets) if terms else ""
    for name in _NAMES:
        form[name] = ", ".join(getattr(record, name, ()))
    if isinstance(record, KeyRecord):
        form |= {name: getattr(record, name) for name in ("name", "team", "owner", "tenant", "default_surface")}
    elif record is not None and record.longest_life_s:
        form["longest_life"] = write_duration(record.longest_life_s)
    return form


def limits_in_words(terms: Terms) -> str:
    """Return limits as the text that a list of keys or teams shows of them."""
    counts = [
        (terms.requests_per_minute, "requests/min"),
        (terms.tokens_per_minute, "tokens/min"),
        (terms.concurrent, "at once"),
    ]
    return ", ".join(f"{count:,} {what}" for count, what in counts if count is not None)


def seconds_of_grace(text: str) -> float:
    """Return how long a key that is replaced stays valid. Raises NotChanged."""
    return _seconds(text) if text.strip() not in ("", "0") else 0.0


def _text(form: Mapping[str, str], name: str) -> str:
    text = form.get(name, "").strip()
    if len(text) > _MOST_TEXT:
        raise NotChanged(f"{name.replace('_', ' ')} is longer than {_MOST_TEXT} characters.")
    return text


def _names(form: Mapping[str, str], fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: tuple(filter(None, re.split(r"[,\s]+", form.get(name, "")))) for name in fields}


def _terms(form: Mapping[str, str]) -> dict[str, Any]:
    return {field: _terms_at(form, prefix) for field, prefix in _PREFIXES.items()}


def _terms_at(form: Mapping[str, str], prefix: str) -> Terms:
    counts: dict[str, int] = {}
    for name in _COUNTS:
        text = _text(form, prefix + name).replace(",", "").replace("_", "")
        if text and not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text)):
            raise NotChanged(f"{(prefix + name).replace('_', ' ')}: {text!r} is no whole number from 1 on.")
        counts |= {name: int(text)} if text else {}
    try:
        budgets = [Budget.read(word) for word in form.get(f"{prefix}budgets", "").split(",") if word.strip()]
        return Terms.model_validate({**counts, "budgets": [budget.model_dump() for budget in budgets]})
    except ValidationError as error:
        raise NotChanged(error.errors()[0]["msg"].removeprefix("Value error, ") + ".") from None
    except ValueError as error:
        raise NotChanged(f"{error}.") from None


def _expiry(text: str, before: float | None, now: float) -> float | None:
    if not text:
        return before
    return None if text == "never" else now + _seconds(text)


def _seconds(text: str) -> float:
    try:
        seconds = read_duration(text.strip())
    except ValueError as error:
        raise NotChanged(f"{error}.") from None
    if seconds > _LONGEST_S:
        raise NotChanged(f"{text!r} is longer than 100 years.")
    return seconds
