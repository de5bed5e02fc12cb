"""Reset and top up the budgets of a key, a team or a tenant, by the forms of their pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from gateway.parts.access.keys.budgets import Owned, OwnerBudgets, terms_in
from gateway.parts.access.keys.registry import KeysRefused, Why
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.pages.key_forms import NotChanged
from gateway.parts.access.quotas.terms import Per
from policies.quantities import NANO, dollars

if TYPE_CHECKING:
    from cache.store.base import Store
    from gateway.config.schema import Deployment

ADJUSTS: Final = ("topup", "reset")
"""Values of a form's `do` that this desk takes."""
ACTION: Final = "teams.change"
"""What a person must be allowed to do (`gateway/parts/access/keys/actions.toml`): budgets of keys are of it, too."""
_MOST_USD: Final = 1e9


class BudgetDesk:
    """Change what counts as spent, as `tierline budgets` does: with an entry in the audit trail."""

    def __init__(self, store: Store, deployment: Deployment) -> None:
        self._budgets = OwnerBudgets(store, terms_in(deployment))

    async def adjust(self, person: Person, owner: Owned, form: Mapping[str, str]) -> str:
        """Do what a form says; return what was done, in words. Raises NotChanged and StoreUnavailable."""
        if not person.may(ACTION):
            raise NotChanged("You may look, and may not change what counts as spent. An admin can.")
        if not (message := form.get("message", "").strip()[:500]):
            raise NotChanged("Say why: it stands in the audit trail.")
        usd, per = _dollars_in(form.get("usd", "")), form.get("per") or None
        if per is not None and per not in get_args(Per):
            raise NotChanged(f"{per!r} is no window of a budget; there are {', '.join(get_args(Per))}.")
        more = form.get("do") == "topup"
        if more and not usd:
            raise NotChanged("Say how many dollars more may be spent.")
        change = self._budgets.top_up if more else self._budgets.reset
        try:
            done = await change(owner, usd, cast(Any, per), Why(person.author(), message, "console"))
        except KeysRefused as refused:
            raise NotChanged(f"{refused}.") from None
        spent = ", ".join(f"{dollars(limit.spent / NANO)} of {dollars(limit.account.limit / NANO)}" for limit in done)
        return f"{f'{dollars(usd)} more may be spent' if more else 'Reset'}: {spent} counts as spent."


def _dollars_in(text: str) -> float:
    try:
        usd = float(text.strip().removeprefix("$").replace(",", "") or "0")
    except ValueError:
        usd = math.nan
    if not 0 <= usd < _MOST_USD:
        raise NotChanged(f"{text!r} is no amount of US dollars, such as 25 or 0.5.")
    return usd
