"""Compare the facts about models with a second source, the package genai-prices, which serving never needs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from importlib import metadata
from typing import Any, Final

from gateway.cli.commands import CommandError
from gateway.config.model_facts import FactsFile, HostedModel
from gateway.config.prices import TokenRates

_PACKAGE: Final = "genai-prices"
_PROVIDERS: Final = {"gemini": "google", "together_ai": "together", "xai": "x-ai"}
"""Names of providers in the facts that genai-prices has others for."""
_RATES: Final = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cached_input": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
}
"""Rates as the facts name them, and as genai-prices does: both in US dollars per million tokens."""
_CLOSE: Final = 0.005
"""Relative difference of two rates that rounding explains."""
_ROUND: Final = 0.05
"""Likewise of two context lengths: many write 2^20 as a million."""
_DAY: Final = re.compile(r"\b20\d\d-\d\d-\d\d\b")


@dataclass(frozen=True, slots=True)
class Difference:
    """One value of one model on which the two sources differ; None: that source does not have it."""

    provider: str
    model: str
    field: str
    """A rate, `long.over`, `long.` and a rate, `context` (tokens), `retired`, or `model` where one has it alone."""
    ours: Any
    theirs: Any
    checked: str | None
    """The last day that genai-prices names for its figures of this model."""
    newer: str
    """`ours`, `theirs`, or `not known` where genai-prices names no day."""
    used: bool
    """Whether `tierline init` proposes the model, or a config names it."""

    @property
    def times(self) -> float | None:
        """How many times ours is theirs; None where either is no number, or 0."""
        both = isinstance(self.ours, (int, float)) and isinstance(self.theirs, (int, float))
        return self.ours / self.theirs if both and self.ours and self.theirs else None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "times": self.times}


def source() -> str:
    """Return the second source in words. Raises CommandError where it is not installed."""
    try:
        return f"{_PACKAGE} {metadata.version(_PACKAGE)}"
    except metadata.PackageNotFoundError:
        raise CommandError(f"{_PACKAGE} is not installed: pip install 'tierline[prices]'") from None


def differences(facts: FactsFile, used: Collection[tuple[str, str]]) -> Iterator[Difference]:
    """Yield what differs, of all models that both have, and the models that genai-prices alone has.

    `used` are the provider and name of each model that counts most.
    """
    from genai_prices.data import providers

    theirs, now = {one.id: one for one in providers}, datetime.now(UTC)
    for provider, models in sorted(facts.models.items()):
        other = theirs.get(_PROVIDERS.get(provider, provider))
        if other is None:
            continue
        found: set[str] = set()
        for name, known in sorted(models.items()):
            if (info := other.find_model(name)) is None:
                continue
            found.add(info.id)
            day = _checked(info, now)
            newer = "not known" if day is None else "theirs" if day > facts.dated else "ours"
            for field, ours, value in _of_model(known, info, now):
                is_used = (provider, name) in used
                yield Difference(provider, name, field, ours, value, _told(day), newer, is_used)
        for info in other.models:
            if info.id not in found and info.id not in models and not info.deprecated:
                day, rate = _checked(info, now), _rates(_prices(info, now)).get("input")
                yield Difference(provider, info.id, "model", None, rate, _told(day), "not known", False)


def _of_model(known: HostedModel, info: Any, now: datetime) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, our value and theirs of each value that differs."""
    prices, price = _prices(info, now), known.price
    pairs: list[tuple[str, float | None, float | None]] = [
        (name, _rate(price, name), value) for name, value in _rates(prices).items()
    ]
    long, over = _long(prices)
    if over is not None or (price is not None and price.long is not None):
        own = None if price is None else price.long
        pairs.append(("long.over", None if own is None else own.over, over))
        pairs += [(f"long.{name}", _rate(own, name), long.get(name)) for name in ("input", "output")]
    yield from ((name, own_value, value) for name, own_value, value in pairs if _differ(own_value, value, name))
    ours, context = known.context, info.context_window
    if ours is not None and context is not None and abs(ours - context) > _ROUND * context:
        yield "context", ours, context
    if info.deprecated and known.retires is None:
        yield "retired", None, True


def _rate(rates: TokenRates | None, name: str) -> float | None:
    return None if rates is None else getattr(rates, name)


def _differ(ours: float | None, theirs: float | None, name: str) -> bool:
    if ours is None or theirs is None:
        # Without a rate of theirs, only that of long prompts says something: they know of none.
        return ours != theirs and (theirs is not None or name.startswith("long"))
    return abs(ours - theirs) > _CLOSE * max(ours, theirs)


def _prices(info: Any, now: datetime) -> Any:
    """Return the prices of today; where they change by the hour, those of the dearest, as the facts have one price."""
    hours = range(24) if isinstance(info.prices, list) else (now.hour,)
    return max((info.get_prices(now.replace(hour=hour)) for hour in hours), key=lambda one: _rates(one)["input"] or 0)


def _rates(prices: Any) -> Mapping[str, float | None]:
    """Return the rates of short prompts."""
    found = {name: getattr(prices, theirs, None) for name, theirs in _RATES.items()}
    return {name: None if one is None else float(getattr(one, "base", one)) for name, one in found.items()}


def _long(prices: Any) -> tuple[Mapping[str, float], int | None]:
    """Return the rates of the first tier of long prompts, and the tokens behind which it begins."""
    found = {name: getattr(getattr(prices, theirs, None), "tiers", ()) for name, theirs in _RATES.items()}
    tiers = {name: one[0] for name, one in found.items() if one}
    over = min((one.start for one in tiers.values()), default=None)
    return {name: float(one.price) for name, one in tiers.items()}, over


def _told(day: date | None) -> str | None:
    return None if day is None else day.isoformat()


def _checked(info: Any, now: datetime) -> date | None:
    """Return the last day, not later than today, that the source names for a model's figures."""
    said = _DAY.findall(info.price_comments or "")
    prices = info.prices if isinstance(info.prices, list) else ()
    starts = [getattr(one.constraint, "start_date", None) for one in prices]
    days = [*map(date.fromisoformat, said), *(one for one in starts if one is not None)]
    return max((one for one in days if one <= now.date()), default=None)
