"""Say which values the names in rules can have: what finds rules that never hold goes by them, and what edits rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from policies.expression import KINDS
from policies.model import Rules


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one name: one of `words`, or true and false where `flag` is set, else numbers from `low` to `high`.

    Both ends are included. `whole`: only whole numbers. `optional`: the value may be missing, and then no comparison
    with it holds.
    """

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    optional: bool = False
    flag: bool = False
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the text for error messages: `from 0 to 1`, `a whole number, 0 or more`."""
        if self.flag:
            return "true or false"
        if self.words:
            return f"one of {', '.join(self.words)}"
        kind = "a whole number" if self.whole else "a number"
        if math.isinf(self.low):
            return kind
        return f"{kind}, {self.low:g} or more" if math.isinf(self.high) else f"from {self.low:g} to {self.high:g}"


Ranges = Mapping[str, Range]

FLAG = Range(flag=True)
SHARE = Range(0.0, 1.0)
COUNT = Range(0.0, whole=True)

ROUTE_VALUES: Final[Ranges] = {
    "p_adequate": replace(SHARE, optional=True),
    "difficulty": replace(SHARE, optional=True),
    "in_domain": FLAG,
    "kind": Range(words=KINDS, optional=True),
    "quantile": replace(SHARE, optional=True),
    "effort": replace(SHARE, optional=True),
    "tokens_in": COUNT,
    "turns": COUNT,
    "conversation_difficulty": replace(SHARE, optional=True),
    "last_tier": COUNT,
    "has_tools": FLAG,
    "wants_json": FLAG,
    "has_images": FLAG,
    "stream": FLAG,
    "reasoning_above": FLAG,
    "budget_ms": Range(0.0),
}
"""Names that a rule of `route.start` or `escalate.speculate.both` may use, and their possible values."""
CLASSIFIER_VALUES: Final = frozenset({"p_adequate", "difficulty", "kind", "quantile"})
"""Values that the classifier gives only for requests in its domain."""
RATED: Final = CLASSIFIER_VALUES | {"in_domain", "effort", "conversation_difficulty"}
"""Values that nothing is known of without a classifier."""
MAY_BE_MISSING: Final = frozenset({"kind", "quantile"})
"""Values that it may lack even there: where no kind was fitted, or none of its reference prompts."""
CACHE_VALUES: Final[Ranges] = {
    "tools": FLAG,
    "images": FLAG,
    "temperature": Range(0.0, optional=True),
    "top_p": replace(SHARE, optional=True),
    "n": Range(1.0, whole=True),
    "seed": Range(whole=True, optional=True),
    "logprobs": FLAG,
    "turns": COUNT,
    "tokens_in": COUNT,
    "stream": FLAG,
    "json": FLAG,
    "volatile": FLAG,
}
"""Names that a rule of `cache.never` may use (see `policies.caching`), and their possible values."""


def asks_for_quantiles(policy: Rules) -> bool:
    """Return whether a start rule or the rule for speculation uses `quantile`, in either form."""
    rules = [*policy.route.start.values(), policy.escalate.speculate.both]
    return any(rule is not None and "quantile" in rule.names for rule in rules)
