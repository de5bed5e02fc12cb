"""Define the spending section of a policy: how a surface answers for less while its owners' budgets run out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from policies.validation import Seconds, Section, Share

AUTO: Final = "auto"
NONE: Final = "none"


class Spending(Section):
    """How requests are steered from a share of the tightest budget on: of the key, team, tenant, user or session.

    The share counts what is under way. Nothing is refused before all of a budget is spent, and nothing changes for
    requests without one. A request that its own limits, or what it asks for, leave no tier up to `cap` starts at the
    cheapest that is left.
    """

    steer_from: Share = 0.9
    """Share of the budget that is spent. At 100% nothing is steered, as what follows is refused."""
    cap: Annotated[str, Field(min_length=1)] = AUTO
    """Strongest tier that requests start at, and whose answers are taken at any confidence; what fails, or has a fault
    in its structure, still goes to the next. `auto`: where the strongest tier's last dollars gain least by the measured
    quality of this surface's answers, and below the strongest where that is not known. `none`: no cap."""
    thresholds: Share = 0.5
    """What the thresholds of confidence come down to when all is spent, as a share of themselves."""
    wait: Seconds | None = None
    """How long a request is held back while its budget is above the share. Left out, a tenth of `slo.deadline` where
    `load.priority` is batch, and else not at all."""

    @property
    def is_measured(self) -> bool:
        """Whether the cap follows from the measured quality of answers."""
        return self.cap == AUTO

    def cap_on(self, ladder: Sequence[str], measured: str) -> str:
        """Return the tier of a ladder that is its cap, with the `measured` one ('' if not known); '' for no cap."""
        cap = self.cap
        if self.is_measured:
            cap = measured if measured in ladder else ladder[-2] if len(ladder) > 1 else NONE
        return "" if cap == NONE or (ladder and cap == ladder[-1]) else cap

    def ease(self, share: float) -> float:
        """Return the factor of the thresholds at that share of a budget: from 1 at `steer_from` down to `thresholds`.

        ease = 1 - (1 - thresholds) * (share - steer_from) / (1 - steer_from)
        """
        if share >= 1 or self.steer_from >= 1:
            return self.thresholds
        return 1 - (1 - self.thresholds) * (share - self.steer_from) / (1 - self.steer_from)
