"""Write down what a decision was made of, compactly and unrounded, and read it back to decide again.

The router leaves a `RecordedDecision` in the trace: references only, about a microsecond. After the reply the
background task of `gateway.telemetry.sink` has it written into the request's record:

    "decide": {"basis": "5b9c0d...", "in": [...], "out": [...]}

`in` is a record as below, `out` the decision, or null where no tier could answer. `basis` names what many requests
share (policy, ladder, capabilities, context lengths, artefacts), a `DecisionBasis`; it is kept in the store's hash
`tierline:bases`, under its id. Reading both gives a DecisionInput for which `decide` returns the same Decision, bit for
bit. The text of the request is not kept. A record is a list of plain JSON values:

    [tokens_in, turns, flags, budget_s, ttft_s, room, holdout, [min_tier, max_tier] or 0,
     [in_domain, kind, p_kind, quantile, p_right ..., [effort] where it is known] or 0,
     [health of each tier of the ladder: 0 if well without a forecast,
      [ttft_s, ttft_p95_s, whole_s, queue_s, least_s, marks] if well, or ["why it is unavailable", failing]],
     [before, last_tier, [cost of each tier of the ladder: 0 if unknown, or [cold, usd, cold_s]]], of which the costs,
     or all of it, are left out where nothing is known of the turns before,
     [share of the tightest budget that is spent, cap]; left out without a budget. What is before it is then written]

`flags` adds 1 for tools, 2 for JSON, 4 for images, 8 for a stream, 16 to 128 for the first capabilities of
`routing.features.FURTHER`, 256 for reasoning of a stronger tier, and 512 and more for the other capabilities.
`marks` adds 1 for a cold backend, 2 and 4 for times to the first and the last token that are a prior's.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cache.store.base import Command
from policies.errors import ConfigError
from policies.loader import made_policy
from policies.model import DeployedTier, Policy
from policies.steering import Spent
from policies.value_type import from_fields
from routing.decide import Clamp, DecisionInput, TierCost, TierHealth
from routing.difficulty.model import CLASSIFIER, Difficulty
from routing.features import FURTHER, Features
from routing.load.latency import Forecast

if TYPE_CHECKING:
    from gateway.telemetry.trace import RecordedDecision
    from policies.model import Policy
    from routing.decide import Decision, TierHealth


Record = Sequence[Any]

_TOOLS: Final = 1
_JSON: Final = 2
_IMAGES: Final = 4
_STREAM: Final = 8
_REASONING: Final = 256
_OLDER: Final = 4
"""How many capabilities had their bits before reasoning had one. Bits keep their meaning, so that records do."""
_FURTHER: Final[Mapping[str, int]] = {
    name: (16 if place < _OLDER else 32) << place for place, name in enumerate(FURTHER)
}
FLAGS: Final = {
    "has_tools": _TOOLS,
    "wants_json": _JSON,
    "has_images": _IMAGES,
    "stream": _STREAM,
    **{f"needs_{name}": bit for name, bit in _FURTHER.items()},
    "reasoning_above": _REASONING,
}
"""The bit of each flag in a record, by its name among the columns of a table."""
_NOTHING_BEFORE: Final = (None, 0)
_WITHOUT_MORE: Final = 10
"""Length of a record without a word on the turns before."""
_NO_COST: Final = [None, None, None]
_JUDGED: Final = ("kind", "p_kind", "quantile")
_FORECAST: Final = ("ttft_s", "ttft_p95_s", "whole_s", "queue_s", "least_s")
_MARKS: Final = {"cold": 1, "prior_ttft": 2, "prior_whole": 4}
_SPENT: Final = ("budget_share", "budget_cap")
_NOT_SPENT: Final = (None, None)
_OUTCOME: Final = ("tiers", "fallbacks", "missing", "weaker", "reason", "stand_in")


class TierFacts(NamedTuple):
    """What a tier can do: the same for all requests until the deployment changes."""

    name: str
    capabilities: frozenset[str]
    endpoints: int
    context: int | None


_made_facts: Final = from_fields(TierFacts)


def tier_facts(health: Mapping[str, TierHealth]) -> tuple[TierFacts, ...]:
    """Return the facts of these tiers, in their order."""
    return tuple(
        [_made_facts((tier.name, tier.capabilities, tier.endpoints, tier.context)) for tier in health.values()]
    )


def record_of(given: DecisionInput, health: Record | None = None) -> Record:
    """Return the record of an input, whose health must be in the order of the policy's ladder.

    `health` is that part of the record, where it is known already.
    """
    features, clamp = given.features, given.clamp
    flags = (
        _TOOLS * features.has_tools
        + _JSON * features.wants_json
        + _IMAGES * features.has_images
        + _STREAM * features.stream
        + _REASONING * features.reasoning_above
    )
    if features.further:
        flags += sum(_FURTHER[name] for name in features.further)
    record: list[Any] = [
        features.approx_tokens,
        features.turns,
        flags,
        given.budget_s,
        given.ttft_s,
        given.room,
        int(given.holdout),
        [clamp.min_tier, clamp.max_tier] if clamp is not None else 0,
        0 if given.difficulty is None else _of_difficulty(given.difficulty),
        list(map(_of_health, given.health.values())) if health is None else health,
    ]
    if features.before is not None or features.last_tier or given.costs:
        costs = [list(cost) if (cost := given.costs.get(name)) else 0 for name in given.health] if given.costs else None
        record.append([features.before, features.last_tier, *([] if costs is None else [costs])])
    if given.spent is not None:
        record += ([*_NOTHING_BEFORE],) if len(record) == _WITHOUT_MORE else ()
        record.append(list(given.spent))
    return record


def input_of(record: Record | Mapping[str, Any], tiers: Sequence[TierFacts], classifier: str) -> DecisionInput:
    """Return the input that was recorded, for tiers with these facts and the classifier of this version.

    The record may have the names that `named` gives. Raises ValueError where it is not one.
    """
    if isinstance(record, Mapping):
        record = unnamed(record)
    try:
        tokens, turns, flags, budget_s, ttft_s, room, holdout, clamp, difficulty, health, *more = record
        before, last_tier, *costs = more[0] if more else _NOTHING_BEFORE
        return DecisionInput(
            _difficulty(difficulty, classifier),
            Features(
                "",
                turns,
                tokens,
                bool(flags & _TOOLS),
                bool(flags & _JSON),
                bool(flags & _IMAGES),
                bool(flags & _STREAM),
                further=frozenset(name for name, bit in _FURTHER.items() if flags & bit),
                reasoning_above=bool(flags & _REASONING),
                before=before,
                last_tier=last_tier,
            ),
            {facts.name: _health(facts, state) for facts, state in zip(tiers, health, strict=True)},
            budget_s,
            ttft_s,
            Clamp(*clamp) if clamp else None,
            bool(holdout),
            room,
            _costs(tiers, costs[0]) if costs else None,
            Spent(*more[1]) if len(more) > 1 else None,
        )
    except TypeError as error:
        raise ValueError(f"not the record of a decision's input: {error}") from None


def outcome_of(decision: Decision) -> Record:
    """Return a decision as plain JSON values, to compare with another."""
    return [
        list(decision.tiers),
        list(decision.fallbacks),
        list(decision.missing),
        int(decision.weaker),
        decision.reason,
        decision.stand_in,
    ]


def named(record: Record | None, outcome: Record | None) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the record of an input and the outcome with a name for every value, as columns of a table have one."""
    given: dict[str, Any] | None = None
    if record is not None:
        tokens, turns, flags, budget_s, ttft_s, room, holdout, clamp, difficulty, health, *more = record
        before, last_tier, *costs = more[0] if more else _NOTHING_BEFORE
        min_tier, max_tier = clamp or (None, None)
        given = {
            "tokens_in": tokens,
            "turns": turns,
            **_named_flags(flags),
            "budget_s": budget_s,
            "ttft_s": ttft_s,
            "room": room,
            "holdout": bool(holdout),
            "min_tier": min_tier,
            "max_tier": max_tier,
            "difficulty": _named_difficulty(difficulty),
            "health": [_named_health(values) for values in health],
            "before": before,
            "last_tier": last_tier,
            "costs": [dict(zip(TierCost._fields, one or _NO_COST, strict=True)) for one in costs[0]] if costs else None,
            **dict(zip(_SPENT, more[1] if len(more) > 1 else _NOT_SPENT, strict=True)),
        }
    return given, None if outcome is None else dict(zip(_OUTCOME, outcome, strict=True))


def unnamed(given: Mapping[str, Any]) -> Record:
    """Return the record that `named` gave these names."""
    clamp = given["min_tier"], given["max_tier"]
    difficulty = given["difficulty"]
    before, last_tier = given.get("before"), given.get("last_tier") or 0
    record = [
        given["tokens_in"],
        given["turns"],
        sum(bit for name, bit in FLAGS.items() if given.get(name)),
        given["budget_s"],
        given["ttft_s"],
        given["room"],
        int(given["holdout"]),
        list(clamp) if any(clamp) else 0,
        0
        if difficulty is None
        else [
            int(difficulty["in_domain"]),
            *(difficulty[name] for name in _JUDGED),
            *difficulty["p_right"],
            *_of_effort(difficulty.get("effort")),
        ],
        [_unnamed_health(values) for values in given["health"]],
    ]
    costs = given.get("costs")
    if before is not None or last_tier or costs:
        record.append([before, last_tier])
        if costs:
            costs_told = [[cost[name] for name in TierCost._fields] for cost in costs]
            record[-1].append([0 if cost == _NO_COST else cost for cost in costs_told])
    if (share := given.get("budget_share")) is not None:
        record += ([*_NOTHING_BEFORE],) if len(record) == _WITHOUT_MORE else ()
        record.append([share, given["budget_cap"]])
    return record


@lru_cache(maxsize=256)
def _named_flags(flags: int) -> Mapping[str, bool]:
    return {name: bool(flags & bit) for name, bit in FLAGS.items()}


def _named_difficulty(record: Record | int) -> dict[str, Any] | None:
    if not isinstance(record, Sequence):
        return None
    in_domain, kind, p_kind, quantile, *numbers = record
    p_right, effort = _parted(numbers)
    judged = {"in_domain": bool(in_domain), "kind": kind, "p_kind": p_kind, "quantile": quantile, "p_right": p_right}
    return {**judged, "effort": effort}


def _named_health(record: Record | int) -> dict[str, Any]:
    if not isinstance(record, Sequence):
        return {"unavailable": ""}
    if isinstance(record[0], str):
        return {"unavailable": record[0], "failing": bool(record[1])}
    *forecast, marks = record
    return {
        "unavailable": "",
        **dict(zip(_FORECAST, forecast, strict=True)),
        **{name: bool(marks & bit) for name, bit in _MARKS.items()},
    }


def _unnamed_health(health: Mapping[str, Any]) -> Record | int:
    if health["unavailable"]:
        return [health["unavailable"], int(health["failing"])]
    if health.get("ttft_s") is None:
        return 0
    return [*(health[name] for name in _FORECAST), sum(bit for name, bit in _MARKS.items() if health.get(name))]


def _costs(tiers: Sequence[TierFacts], record: Sequence[Record | int]) -> dict[str, TierCost]:
    named = zip(tiers, record, strict=False)
    return {facts.name: TierCost(*values) for facts, values in named if isinstance(values, Sequence)}


def _of_difficulty(difficulty: Difficulty) -> Record:
    kind, p_kind = difficulty.kind, difficulty.p_kind
    effort = _of_effort(difficulty.effort)
    return [int(difficulty.in_domain), kind, p_kind, difficulty.quantile, *difficulty.p_right, *effort]


def _of_effort(effort: float | None) -> Sequence[Record]:
    return () if effort is None else ([effort],)


def _parted(numbers: Sequence[Any]) -> tuple[list[float], float | None]:
    """Return P(right) of each tier, and the effort, which is last and a list, so that older records lack it."""
    if numbers and isinstance(numbers[-1], Sequence):
        return list(numbers[:-1]), numbers[-1][0]
    return list(numbers), None


def _difficulty(record: Record | int, classifier: str) -> Difficulty | None:
    if not isinstance(record, Sequence):
        return None
    in_domain, kind, p_kind, quantile, *numbers = record
    p_right, effort = _parted(numbers)
    return Difficulty(tuple(p_right), bool(in_domain), classifier, kind, quantile, p_kind, effort)


def _of_health(health: TierHealth) -> Record | int:
    if health.unavailable:
        return [health.unavailable, int(health.failing)]
    forecast = health.forecast
    if forecast is None or not forecast.known:
        return 0
    marks = forecast.cold | forecast.prior_ttft << 1 | forecast.prior_whole << 2
    return [forecast.ttft_s, forecast.ttft_p95_s, forecast.whole_s, forecast.queue_s, forecast.least_s, marks]


def _health(facts: TierFacts, record: Record | int) -> TierHealth:
    unavailable, failing, forecast = "", False, None
    if isinstance(record, Sequence):
        if isinstance(record[0], str):
            unavailable, failing = record[0], bool(record[1])
        else:
            ttft_s, p95_s, whole_s, queue_s, least_s, marks = record
            forecast = Forecast(
                ttft_s,
                p95_s,
                whole_s,
                queue_s,
                known=True,
                cold=bool(marks & 1),
                least_s=least_s,
                prior_ttft=bool(marks & 2),
                prior_whole=bool(marks & 4),
            )
    return TierHealth(facts.name, facts.capabilities, facts.endpoints, unavailable, failing, forecast, facts.context)


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
        self._last: tuple[Policy, list[TierHealth], tuple[str, bytes], Record] | None = None
        """Basis, and health as recorded, of the last decision: a tier gives many requests the same health, and most
        share their policy."""
        self._due: dict[str, bytes] = {}
        """Bases, by id, that encoded decisions refer to and the store may not have."""

    def encode(self, made: RecordedDecision) -> dict[str, Any]:
        """Return the part of a request's record that holds its decision, as JSON values."""
        health = list(made.given.health.values())
        if (last := self._last) is None or last[0] is not made.policy or last[1] != health:
            last = made.policy, health, self._basis_of(made), list(map(_of_health, health))
        _, _, (basis, blob), states = last
        self._last = made.policy, health, (basis, blob), states  # these objects: equal ones are compared by field
        if time.monotonic() - self._written.get(basis, -math.inf) >= _AGAIN_S:
            self._due[basis] = blob
        out = None if made.decision is None else outcome_of(made.decision)
        return {"basis": basis, "in": record_of(made.given, states), "out": out}

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


_VERSION: Final = 1
_ID_LENGTH: Final = 16


class BasisError(ValueError):
    """A basis cannot be read: it is damaged, or of another version of Tierline."""


@dataclass(frozen=True, slots=True)
class DecisionBasis:
    """What the decisions of many requests share: the policy's content, its ladder, the tiers' facts, the artefacts.

    It is written once and named by its hash, so that a record of one request stays small. As JSON:

    {"v": 1, "content": {...the policy file's...}, "version": "e01f1a4...", "ladder": ["local", "hosted"],
     "unconfigured": [{"name": ..., "models": [...], "capabilities": [...], "unconfigured": "why"}],
     "tiers": [{"name": ..., "capabilities": [...], "endpoints": 1, "context": 8192}, ...one for each of the ladder],
     "artefacts": {"classifier": "9f31...", "embedder": ..., ...}}
    """

    policy: Policy
    tiers: tuple[TierFacts, ...]
    artefacts: Mapping[str, str]
    """Version of each artefact that the worker uses, by what it is: the first digits of its SHA-256."""

    def encode(self) -> tuple[str, bytes]:
        """Return the basis's id (16 hex digits of its SHA-256) and its JSON."""
        policy = self.policy
        basis = {
            "v": _VERSION,
            "content": policy.content,
            "version": policy.version,
            "ladder": policy.ladder,
            "unconfigured": [_as_json(tier) for tier in policy.unconfigured.values()],
            "tiers": [_as_json(tier) for tier in self.tiers],
            "artefacts": dict(sorted(self.artefacts.items())),
        }
        blob = orjson.dumps(basis)
        return hashlib.sha256(blob).hexdigest()[:_ID_LENGTH], blob

    @classmethod
    def decode(cls, blob: bytes) -> DecisionBasis:
        """Return the basis that was encoded. Raises BasisError."""
        try:
            read = orjson.loads(blob)
            if read["v"] != _VERSION:
                raise BasisError(f"a basis of format {read['v']}; this version of Tierline reads {_VERSION}")
            unconfigured = [DeployedTier(**_from_json(tier)) for tier in read["unconfigured"]]
            policy = made_policy(
                read["content"],
                Path(f"policy {read['version'][:7]}"),
                {"ladder": tuple(read["ladder"]), "unconfigured": {tier.name: tier for tier in unconfigured}},
            )
            if policy.version != read["version"]:
                raise BasisError(f"the content of policy {read['version'][:7]} means something else to this version")
            return cls(policy, tuple(TierFacts(**_from_json(tier)) for tier in read["tiers"]), read["artefacts"])
        except BasisError:
            raise
        except (ConfigError, ValueError, KeyError, TypeError) as error:
            raise BasisError(f"not a decision's basis: {error}") from None

    def input_of(self, record: Record | Mapping[str, Any]) -> DecisionInput:
        """Return the input that was recorded with this basis, with names or without. Raises ValueError."""
        return input_of(record, self.tiers, self.artefacts.get(CLASSIFIER, ""))


def basis_of(policy: Policy, given: DecisionInput, artefacts: Mapping[str, str]) -> DecisionBasis:
    """Return the basis of a decision by this policy."""
    return DecisionBasis(policy, tier_facts(given.health), artefacts)


def _as_json(tier: DeployedTier | TierFacts) -> dict[str, Any]:
    names = tier._fields if isinstance(tier, TierFacts) else tier.__dataclass_fields__
    fields = {name: getattr(tier, name) for name in names}
    return {**fields, "capabilities": sorted(tier.capabilities)}


def _from_json(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        **fields,
        "capabilities": frozenset(fields["capabilities"]),
        **{name: tuple(fields[name]) for name in ("models", "fields") if name in fields},
    }
