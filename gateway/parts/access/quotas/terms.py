"""Define what an owner of limits may use: requests and tokens a minute, requests at once, and money by calendar window.

Owners are a key, a team, a tenant, the request's end user and its session. The same terms stand in the config
(`tenants`, `teams`) and in the records of keys and teams in the store.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from policies.quantities import NANO, read_number
from policies.validation import Section, Whole

OwnerKind = Literal["key", "team", "tenant", "user", "session"]
Per = Literal["day", "week", "month", "total"]

MOST_USD: Final = 9_000_000
"""Largest budget in US dollars: its nanodollars are exact in the store's arithmetic (2 to the power of 53)."""


class Budget(Section):
    """Money that one owner may spend in each window of the calendar, a week beginning on Monday."""

    usd: Annotated[float, BeforeValidator(read_number), Field(ge=0, le=MOST_USD, allow_inf_nan=False)]
    """US dollars; 0 allows no call of a model. An owner without a budget has no limit of money."""
    per: Per = "month"
    zone: str = "UTC"
    """Name of the time zone in which the window begins, such as `Europe/Berlin`."""

    @field_validator("zone")
    @classmethod
    def _is_known(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"{zone!r} is no time zone; write a name such as UTC or Europe/Berlin") from None
        return zone

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the budget that people write so: `25/month`, `25/month@Europe/Berlin`. Raises ValueError."""
        match = re.fullmatch(r"\$?([\d._]+)(?:/| a | per )(day|week|month|total)(?:[@ ]([\w/+-]+))?", text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no budget; write 25/month, 5/day@Europe/Berlin or 100/total")
        usd, per, zone = match.groups("UTC")
        try:
            return cls.model_validate({"usd": usd, "per": per, "zone": zone})
        except ValidationError as error:
            message = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"{text!r}: {message[:1].lower()}{message[1:]}") from None

    @property
    def text(self) -> str:
        """The budget as `read` takes it."""
        return f"{self.usd:.15g}/{self.per}" + (f"@{self.zone}" if self.zone != "UTC" else "")

    @property
    def nanodollars(self) -> int:
        """The budget in whole nanodollars."""
        return round(self.usd * NANO)


Count = Annotated[Whole, Field(ge=1)]


class Terms(Section):
    """Limits and budgets of one owner; what is None or empty is not limited."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Prompt and completion tokens together."""
    concurrent: Count | None = None
    """Most requests under way at once."""
    budgets: tuple[Budget, ...] = ()

    @field_validator("budgets")
    @classmethod
    def _one_of_a_window(cls, budgets: tuple[Budget, ...]) -> tuple[Budget, ...]:
        windows = [budget.per for budget in budgets]
        for per in windows:
            if windows.count(per) > 1:
                raise ValueError(f"two budgets are per {per}; keep one")
        return budgets

    def __bool__(self) -> bool:
        """Return whether anything is limited."""
        return bool(self.budgets or self.requests_per_minute or self.tokens_per_minute or self.concurrent)

    def plain(self) -> dict[str, Any]:
        """Return the terms as JSON values, without what is not set."""
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)


NO_TERMS: Final = Terms()
