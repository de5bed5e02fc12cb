"""Record routing decisions so that they can be made again: with the same policy, or with another.

The router leaves a `RecordedDecision` in the trace: references only, about a microsecond. After the reply the
background task of `gateway.telemetry.sink` encodes it into the request's record:

    "decide": {"basis": "5b9c0d...", "in": [...], "out": [...]}

`in` is `decision_record`'s list, `out` the decision, or null where no tier could answer. `basis` names what
many requests share; it is kept in the store's hash `tierline:bases`, under its id.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cache.store.base import Command
from gateway.parts.recorder.decision_basis import basis_of
from gateway.parts.recorder.decision_record import TierFacts, outcome_of, record_of, tier_facts
from routing.difficulty.model import CLASSIFIER

if TYPE_CHECKING:
    from gateway.telemetry.trace import RecordedDecision
    from policies.model import Policy
    from routing.decide import TierHealth

BASES: Final = "tierline:bases"
"""Key of the store's hash of bases, JSON by id. It grows by one for each change of a policy or of the deployment."""

_AGAIN_S: Final = 60.0
"""A basis in use is written again after this time, for a store that was emptied meanwhile."""
_MOST: Final = 1000
_Key = tuple[str, tuple[str, ...], tuple[TierFacts, ...]]


class DecisionRecorder:
    """Encode recorded decisions off the request's path, and hold the bases that the store lacks. One per worker.

    `artefacts` are the versions of the artefacts that this worker uses, by what they are.
    """

    def __init__(self, artefacts: Mapping[str, str]) -> None:
        self._artefacts = artefacts
        self._bases: dict[_Key, tuple[str, bytes]] = {}
        self._written: dict[str, float] = {}
        self._last: tuple[Policy, list[TierHealth], tuple[str, bytes]] | None = None
        """The basis of the last decision: a tier gives many requests the same health, and most share their policy."""
        self._due: dict[str, bytes] = {}
        """Bases, by id, that encoded decisions refer to and the store may not have."""

    def encode(self, made: RecordedDecision) -> dict[str, Any]:
        """Return the part of a request's record that holds its decision, as JSON values."""
        health = list(made.given.health.values())
        if self._last is None or self._last[0] is not made.policy or self._last[1] != health:
            self._last = made.policy, health, self._basis_of(made)
        basis, blob = self._last[2]
        if time.monotonic() - self._written.get(basis, -math.inf) >= _AGAIN_S:
            self._due[basis] = blob
        out = None if made.decision is None else outcome_of(made.decision)
        return {"basis": basis, "in": record_of(made.given), "out": out}

    def _basis_of(self, made: RecordedDecision) -> tuple[str, bytes]:
        key = made.policy.version, made.policy.ladder, tier_facts(made.given.health)
        known = self._bases.get(key)
        if known is None:
            if len(self._bases) >= _MOST:
                self._bases.clear()
                self._written.clear()
            known = self._bases[key] = basis_of(made.policy, made.given, self._artefacts_of(made.policy)).encode()
        return known

    def _artefacts_of(self, policy: Policy) -> Mapping[str, str]:
        """Return the artefacts that decide on this policy's requests: the worker's, but for a classifier of its own."""
        pinned = policy.route.pinned
        return self._artefacts if pinned is None else {**self._artefacts, CLASSIFIER: pinned.version[:12]}

    def commands(self) -> list[Command]:
        """Return what writes the bases that are due; `written` says that it was carried out."""
        bases = [word for name, blob in self._due.items() for word in (name.encode(), blob)]
        return [Command((b"HSET", BASES.encode(), *bases))] if bases else []

    def written(self) -> None:
        """Note that the store has the bases that were due."""
        now = time.monotonic()
        self._written.update(dict.fromkeys(self._due, now))
        self._due.clear()
