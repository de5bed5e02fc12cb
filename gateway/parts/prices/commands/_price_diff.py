"""Compare the facts about models with a second source, the package genai-prices, which serving never needs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime
from importlib import metadata
from typing import Any, Final

from gateway.cli.commands import CommandError
from gateway.parts.prices.model_facts import FactsFile, HostedModel

_PACKAGE: Final = "genai-prices"
_PROVIDERS: Final = {"gemini": "google", "together_ai": "together", "xai": "x-ai"}
"""Names of providers in the facts that genai-prices has others for."""
_RATES: Final = (
    ("input", "input_mtok"),
    ("output", "output_mtok"),
    ("cached_input", "cache_read_mtok"),
    ("cache_write", "cache_write_mtok"),
)
"""Rates as the facts name them, and as genai-prices does: both in US dollars per million tokens."""
_CLOSE: Final = 0.005
"""Relative difference of two rates that rounding explains."""
_ROUND: Final = 0.05
"""Likewise of two context lengths: many write 2^20 as a million."""
_DAY: Final = re.compile(r"\b20\d\d-\d\d-\d\d\b")

Row = dict[str, Any]
"""One value of one model on which they differ: `provider`, `model`, `field` (a rate, `long.` and a rate, `long.over`,
those of further steps as `long2.` and so on, `context` in tokens, `retired`, or `model` where they have it alone),
`ours`, `theirs` (None: not stated), `times` (ours by theirs), `checked` (the last day that theirs names), `newer`
(`ours`, `theirs` or `not known`) and `used`."""


def source() -> str:
    """Return the second source in words. Raises CommandError where it is not installed."""
    try:
        return f"{_PACKAGE} {metadata.version(_PACKAGE)}"
    except metadata.PackageNotFoundError:
        raise CommandError(f"{_PACKAGE} is not installed: pip install 'tierline[prices]'") from None


def differences(facts: FactsFile, used: Collection[tuple[str, str]]) -> Iterator[Row]:
    """Yield what differs, of all models that both have, and the models that genai-prices alone has.

    `used` are the provider and name of each model that counts most.
    """
    from genai_prices.data import providers

    now = datetime.now(UTC)
    others = {provider.id: provider for provider in providers}
    for provider, models in sorted(facts.models.items()):
        if (other := others.get(_PROVIDERS.get(provider, provider))) is None:
            continue
        both = [(name, model, info) for name, model in sorted(models.items()) if (info := other.find_model(name))]
        for name, model, info in both:
            day, ours, theirs = _checked(info, now), _ours(model), _theirs(info, now)
            newer = "not known" if day is None else "theirs" if day > facts.dated else "ours"
            row = {
                "provider": provider,
                "model": name,
                "checked": day,
                "newer": newer,
                "used": (provider, name) in used,
            }
            for field in theirs | ours:
                own, value = ours.get(field), theirs.get(field)
                if _differ(field, own, value):
                    times = own / value if own and value else None
                    yield {**row, "field": field, "ours": own, "theirs": value, "times": times}
        ids = {info.id for *_, info in both}
        for info in other.models:
            if info.id not in ids | models.keys() and not info.deprecated:
                row = {"provider": provider, "model": info.id, "field": "model", "ours": None, "times": None}
                price = _theirs(info, now)["input"]
                yield {**row, "theirs": price, "checked": _checked(info, now), "newer": "not known", "used": False}


def _checked(info: Any, now: datetime) -> date | None:
    """Return the last day, not later than today, that the source names for a model's figures."""
    dates = [date.fromisoformat(day) for day in _DAY.findall(info.price_comments or "")]
    prices = info.prices if isinstance(info.prices, list) else ()
    starts = [getattr(price.constraint, "start_date", None) for price in prices]
    return max((day for day in (*dates, *starts) if day is not None and day <= now.date()), default=None)


def _ours(model: HostedModel) -> dict[str, Any]:
    price = model.price
    rates = {name: getattr(price, name, None) for name, _ in _RATES}
    for step, long in zip(_step_names(), () if price is None else price.long, strict=False):
        rates |= {f"{step}.{name}": getattr(long, name, None) for name in ("over", *dict(_RATES))}
    return {**rates, "context": model.context, "retired": None if model.retires is None else True}


def _step_names() -> Iterator[str]:
    """Yield what the steps of long prompts are called, shortest first."""
    return itertools.chain(("long",), (f"long{number}" for number in itertools.count(2)))


def _theirs(info: Any, now: datetime) -> dict[str, Any]:
    """Return what they say of today; where prices change by the hour, the dearest, as the facts have one price."""
    hours = range(24) if isinstance(info.prices, list) else (now.hour,)
    found = [
        {name: getattr(prices, theirs, None) for name, theirs in _RATES}
        for prices in (info.get_prices(now.replace(hour=hour)) for hour in hours)
    ]
    short, rates = max(
        (({name: _number(getattr(rate, "base", rate)) for name, rate in rates.items()}, rates) for rates in found),
        key=lambda pair: pair[0]["input"] or 0,
    )
    tiers = {name: tiers for name, rate in rates.items() if (tiers := getattr(rate, "tiers", ()))}
    found_steps = sorted({tier.start for of_rate in tiers.values() for tier in of_rate})
    long: dict[str, Any] = {}
    for step, over in zip(_step_names(), found_steps, strict=False):
        long[f"{step}.over"] = over
        for name, of_rate in tiers.items():
            below = [tier.price for tier in sorted(of_rate, key=lambda tier: tier.start) if tier.start <= over]
            long[f"{step}.{name}"] = _number(below[-1]) if below else short[name]
    return {**short, **long, "context": info.context_window, "retired": info.deprecated or None}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _differ(field: str, ours: float | None, theirs: float | None) -> bool:
    """Return whether two values say something else; what one source does not state says nothing but of long prompts."""
    if ours is None or theirs is None:
        return ours != theirs and (field.endswith(".over") or (theirs is not None and field != "context"))
    return abs(ours - theirs) > (_ROUND if field == "context" else _CLOSE) * max(ours, theirs)
