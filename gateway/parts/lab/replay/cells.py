"""Decide many recorded requests by one policy: sort them into cells, and run the real `decide` once for each cell.

`decide` compares the values of a request with constants: those of the policy's start rules, the tiers' contexts, the
time left. So two requests get the same tiers wherever every value lies on the same side of every constant. A cell is
the set of requests that agree in all of this (equality with a constant is a side of its own); one member stands for
it. Only numbers within the texts of a decision (`reason`, `stand_in`) differ between the members of a cell, so a
`CellVerdict` holds of them only whether there is a stand-in, and which rule held.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.parts.lint.outcomes import constants_by_name
from gateway.parts.recorder.decision_record import FLAGS, Record, TierFacts, input_of
from policies.expression import KINDS, Expression
from policies.loader import made_policy
from policies.steering import Spent
from routing.decide import Decision, NoTierError, decide
from routing.difficulty.model import CLASSIFIER
from routing.features import FURTHER

if TYPE_CHECKING:
    from gateway.parts.recorder.decision_record import DecisionBasis
    from policies.model import Policy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_STREAM: Final = 8
_ALL: Final = frozenset({"tools", "vision", "json", *FURTHER})
_FLAG_VALUES: Final = 1 << len(FLAGS)
_FLAGS: Final = frozenset({"has_tools", "wants_json", "has_images", "stream", "reasoning_above"})
_LIMIT: Final = 1 << 62
_SHARES: Final = 200
"""Steps in which a budget's share counts: half a percent of it moves a threshold by a fortieth at most."""


class CellVerdict(NamedTuple):
    """What is the same for all members of a cell. `rule` is the reason's first clause: the tier and the rule."""

    tiers: tuple[str, ...]
    fallbacks: tuple[str, ...]
    missing: tuple[str, ...]
    weaker: bool
    stands_in: bool
    rule: str = ""
    ease: tuple[float, ...] = ()
    """The factors of the thresholds at `tiers`; empty where no budget steers."""


NO_TIER: Final = CellVerdict((), (), (), weaker=False, stands_in=False)
"""The verdict on a request that no tier can answer."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The recorded inputs of n decisions with one basis, a column each. Missing numbers are NaN.

    `health` columns have shape (n, tiers), in the order of the basis's ladder: `state` is 0 for well, 1 for
    unavailable and 2 for failing; `ttft_s` and `whole_s` are the forecast. `flags` are those of
    `decision_record`. `clamps` (n, 2) and `kind` are positions in `names` and in `kinds`, from 1; 0 for none.
    """

    tokens_in: Ints
    turns: Ints
    flags: Ints
    budget_s: Floats
    limit_s: Floats
    """The time left for a stream's first token in seconds; NaN where nothing limits it."""
    room: Ints
    holdout: Bools
    clamps: Ints
    judged: Bools
    """Whether the classifier gave anything, within its domain or not."""
    in_domain: Bools
    kind: Ints
    quantile: Floats
    effort: Floats
    p_right: Floats
    before: Floats
    last_tier: Ints
    budget_share: Floats
    """How much of the tightest budget was spent; NaN without one."""
    budget_cap: Ints
    """The tier beyond which dollars gained least, as a position in `names`; 0 where that was not known."""
    state: Ints
    ttft_s: Floats
    whole_s: Floats
    usd: Floats
    """What each tier would cost the conversation (`routing.decide.TierCost`); NaN where that is not known."""
    cold_s: Floats
    names: Sequence[str] = ()
    kinds: Sequence[str] = KINDS

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.tokens_in)


@dataclass(slots=True)
class VerdictTable:
    """All verdicts that have occurred, each with a number."""

    verdicts: list[CellVerdict] = field(default_factory=list)
    _numbers: dict[CellVerdict, int] = field(default_factory=dict)

    def number(self, verdict: CellVerdict) -> int:
        """Return the verdict's number, a new one if it has none."""
        known = self._numbers.get(verdict)
        if known is None:
            known = self._numbers[verdict] = len(self.verdicts)
            self.verdicts.append(verdict)
        return known

    def copy(self) -> VerdictTable:
        """Return a table with the same numbers, to which others may be added."""
        return VerdictTable(list(self.verdicts), dict(self._numbers))


class CellDecider:
    """Decide records of one basis by one policy, whose ladder is that of the basis's deployment."""

    def __init__(self, policy: Policy, basis: DecisionBasis, table: VerdictTable) -> None:
        """Use `policy`; tiers of its ladder that the basis lacks count as well, able to do all, without a forecast."""
        self.policy = policy
        self.cells = 0
        """Number of times that `decide` ran."""
        self._table = table
        self._classifier = basis.artefacts.get(CLASSIFIER, "")
        facts = {tier.name: tier for tier in basis.tiers}
        self._facts = tuple(facts.get(name) or TierFacts(name, _ALL, 1, None) for name in policy.ladder)
        places = {tier.name: place for place, tier in enumerate(basis.tiers)}
        self._places = [places.get(name, -1) for name in policy.ladder]

    def decide(self, inputs: Inputs) -> Ints:
        """Return the number of each record's verdict in the table."""
        if not len(inputs):
            return np.zeros(0, np.int64)
        keys = _combined(self._signature(inputs), len(inputs))
        _, members, cell_of = np.unique(keys, return_index=True, return_inverse=True)
        self.cells += len(members)
        numbers = [self._table.number(self.verdict(inputs, int(member))) for member in members]
        return np.array(numbers, np.int64)[cell_of]

    def verdict(self, inputs: Inputs, at: int) -> CellVerdict:
        """Return the verdict on one record, by `decide`."""
        given = input_of(self.record(inputs, at), self._facts, self._classifier)
        try:
            return decision_cells(self.policy, decide(self.policy, given))
        except NoTierError:
            return NO_TIER

    def record(self, inputs: Inputs, at: int) -> Record:
        """Return one record in the form of `gateway.parts.recorder.decision_record`, for the tiers of this policy."""
        low, high = inputs.clamps[at]
        clamp = [inputs.names[code - 1] if code else None for code in (low, high)]
        difficulty: Any = 0
        if inputs.judged[at]:
            kind = inputs.kinds[inputs.kind[at] - 1] if inputs.kind[at] else ""
            p_right = [p for p in inputs.p_right[at].tolist() if p == p]  # noqa: PLR0124 - NaN differs from itself
            effort = [] if (own := _or_none(inputs.effort[at])) is None else [[own]]
            difficulty = [int(inputs.in_domain[at]), kind, 0.0, _or_none(inputs.quantile[at]), *p_right, *effort]
        before, last_tier = _or_none(inputs.before[at]), int(inputs.last_tier[at])
        costs = [_cost(inputs, at, place) for place in self._places]
        turns = [before, last_tier, *([costs] if any(costs) else [])]
        cap, share = int(inputs.budget_cap[at]), _or_none(inputs.budget_share[at])
        spent = [] if share is None else [[share, inputs.names[cap - 1] if cap else ""]]
        return [
            int(inputs.tokens_in[at]),
            int(inputs.turns[at]),
            int(inputs.flags[at]),
            float(inputs.budget_s[at]),
            _or_none(inputs.limit_s[at]),
            int(inputs.room[at]),
            int(inputs.holdout[at]),
            clamp if low or high else 0,
            difficulty,
            [_health(inputs, at, place) for place in self._places],
            *([turns] if spent or turns != [None, 0] else []),
            *spent,
        ]

    def _signature(self, inputs: Inputs) -> list[tuple[Ints, int]]:
        """Return a column for everything that `decide` distinguishes, each with the number of its values."""
        columns = [(inputs.flags, _FLAG_VALUES), (inputs.holdout.astype(np.int64), 2)]
        limit = np.fmin(inputs.budget_s, inputs.limit_s)
        expected, usd = np.zeros((2, len(inputs), len(self._places)))
        weighs = self.policy.route.weigh_switching and bool(np.isfinite(inputs.usd).any() or inputs.cold_s.any())
        stream = inputs.flags & _STREAM > 0
        for column, place in enumerate(self._places):
            if place >= 0:
                columns.append((inputs.state[:, place], 3))
                seconds = np.where(stream, inputs.ttft_s[:, place], inputs.whole_s[:, place])
                if weighs:
                    columns.append((np.isnan(inputs.usd[:, place]).astype(np.int64), 2))
                    usd[:, column] = np.nan_to_num(inputs.usd[:, place], nan=0.0)
                    seconds = np.where(seconds > 0, seconds + inputs.cold_s[:, place], seconds)
                expected[:, column] = np.nan_to_num(seconds, nan=0.0)
        columns += _orders(usd) if weighs else []
        late = expected > limit[:, None]
        if late.any():
            columns += [(late[:, column].astype(np.int64), 2) for column in range(late.shape[1])]
            columns += _orders(np.where(late.any(axis=1, keepdims=True), expected, 0.0))
        return columns + self.lasting_columns(inputs)

    def lasting_columns(self, inputs: Inputs) -> list[tuple[Ints, int]]:
        """Return what is the same whenever a request is made: limits of its tiers, its room, what the rules ask for.

        Left out are its flags, the holdout's draw and the health of the tiers.
        """
        names = len(inputs.names) + 1
        contexts = [facts.context for facts in self._facts if facts.context is not None]
        columns = [((inputs.room > context).astype(np.int64), 2) for context in contexts]
        if inputs.names:
            columns.append((inputs.clamps[:, 0] * names + inputs.clamps[:, 1], names * names))
        if (steered := inputs.budget_share >= self.policy.steer_from).any():
            spent = np.minimum(np.nan_to_num(inputs.budget_share) * _SHARES, _SHARES).astype(np.int64)
            columns.append((np.where(steered, (spent + 1) * names + inputs.budget_cap, 0), (_SHARES + 2) * names))
        return columns + self.rule_columns(inputs)

    def rule_columns(self, inputs: Inputs) -> list[tuple[Ints, int]]:
        """Return where each value that the start rules ask for lies between their constants."""
        policy = self.policy
        values: dict[str, Floats] = {}
        constants: dict[str, set[float]] = {}
        columns: list[tuple[Ints, int]] = []
        for tier, rule in policy.route.start.items():
            named = {name: f"p_adequate of {tier}" if name == "p_adequate" else name for name in rule.names}
            for name, own in named.items():
                if own not in values and (value := self._value(inputs, name, tier)) is not None:
                    values[own] = value
            numeric = {name: own for name, own in named.items() if own in values}
            for name, numbers in constants_by_name(rule).items():
                if name in numeric:  # 0 is the only number that is false
                    constants.setdefault(numeric[name], {0.0}).update(numbers)
            for less, other in _compared_pairs(rule):
                if less in numeric and other in numeric:
                    columns.append(_compared(values[numeric[less]], values[numeric[other]]))
            if "kind" in rule.names:
                columns.append((np.where(inputs.in_domain, inputs.kind, 0), len(inputs.kinds) + 1))
            if rule.names & _FLAGS:
                columns.append((inputs.flags, _FLAG_VALUES))
            if "in_domain" in rule.names:
                columns.append((inputs.in_domain.astype(np.int64), 2))
        return columns + [_position(values[name], sorted(constants[name])) for name in values]

    def _value(self, inputs: Inputs, name: str, tier: str) -> Floats | None:
        """Return the column of a number that rules may ask for, NaN where it is missing; None for flags and words.

        The arithmetic is that of `routing.decide.rule_values`.
        """
        tiers = self.policy.tiers
        match name:
            case "p_adequate":
                return _p_adequate(inputs, tiers.index(tier), len(tiers))
            case "difficulty":
                return _difficulty(inputs)
            case "quantile":
                return self._quantile(inputs)
            case "effort":
                return np.where(inputs.judged, inputs.effort, np.nan)
            case "tokens_in":
                return inputs.tokens_in.astype(np.float64)
            case "turns":
                return inputs.turns.astype(np.float64)
            case "conversation_difficulty":
                return self._conversation_difficulty(inputs)
            case "last_tier":
                return inputs.last_tier.astype(np.float64)
            case "budget_ms":
                return inputs.budget_s * 1000
        return None

    def _conversation_difficulty(self, inputs: Inputs) -> Floats:
        quantile = self._quantile(inputs)
        before = np.where(inputs.turns <= 1, np.nan_to_num(inputs.before), inputs.before)
        own = np.where(np.isnan(quantile), _difficulty(inputs), quantile)
        abstained = np.where(np.isnan(inputs.effort), 1.0, inputs.effort)
        return np.where(inputs.judged, np.maximum(before, np.where(inputs.in_domain, own, abstained)), np.nan)

    def _quantile(self, inputs: Inputs) -> Floats:
        own = np.where(inputs.in_domain, inputs.quantile, np.nan)
        traffic = self.policy.route.traffic
        if traffic is None or traffic.classifier != self._classifier:
            return own
        for kind, deciles in traffic.deciles.items():
            if kind not in inputs.kinds:
                continue
            of_kind = (inputs.kind == inputs.kinds.index(kind) + 1) & ~np.isnan(own)
            quantile, ends = inputs.quantile[of_kind], np.array([0.0, *deciles, 1.0])
            at = np.searchsorted(ends[1:-1], quantile, "left")
            low, high = ends[at], ends[at + 1]
            with np.errstate(divide="ignore", invalid="ignore"):
                within = np.where(high > low, np.minimum(1.0, (quantile - low) / (high - low)), 0.0)
            own[of_kind] = (at + within) / (len(deciles) + 1)
        return own


def rule_cells(policies: Sequence[Policy], basis: DecisionBasis, inputs: Inputs) -> Ints:
    """Return a hash of where each record lies between the constants of these policies' start rules, the same always."""
    deciders = [CellDecider(policy, basis, VerdictTable()) for policy in policies]
    return mixed([column for decider in deciders for column, _ in decider.rule_columns(inputs)], len(inputs))


def lasting_cells(decider: CellDecider, inputs: Inputs) -> Ints:
    """Return a hash of what `decide` distinguishes of each record but for the moment and whether it streams.

    Two records with equal hashes get the same decision in the same moment.
    """
    columns = [column for column, _ in decider.lasting_columns(inputs)]
    return mixed([inputs.flags & ~_STREAM, *columns], len(inputs))


def question_hashes(inputs: Inputs) -> Ints:
    """Return a hash of what the classifier said of each record's text and of its length; 0 where it said nothing.

    Two records with equal hashes ask the same: the classifier's numbers are those of one text.
    """
    numbers = [np.ascontiguousarray(column).view(np.int64) for column in inputs.p_right.T]
    keys = mixed([inputs.tokens_in, inputs.flags & ~_STREAM, inputs.kind, *numbers], len(inputs))
    return np.where(inputs.judged, keys, 0)


def mixed(columns: Sequence[Ints], rows: int) -> Ints:
    """Return a hash of each row across the columns, of `rows` items each; the same in every process."""
    keys = np.zeros(rows, np.uint64)
    for column in columns:
        keys = (keys ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys.astype(np.int64)


def numbered(keys: NDArray[np.integer[Any]]) -> Ints:
    """Return the keys numbered from 0 in their order."""
    _, numbers = np.unique(keys, return_inverse=True)
    return np.asarray(numbers, np.int64)


def decision_cells(policy: Policy, decision: Decision) -> CellVerdict:
    """Return what cells compare of a decision."""
    rule, steering = decision.reason.split("; ", 1)[0], decision.steering
    if steering is not None:
        share = max(policy.steer_from, min(int(steering.share * _SHARES) / _SHARES, 1.0))
        if (eased := policy.steering(Spent(share))) is not None:
            steering = steering._replace(ease=eased.ease)
    return CellVerdict(
        tuple(decision.tiers),
        tuple(decision.fallbacks),
        tuple(decision.missing),
        bool(decision.weaker),
        bool(decision.stand_in),
        rule,
        () if steering is None else tuple([steering.ease_at(policy.tiers, tier) for tier in decision.tiers]),
    )


def _health(inputs: Inputs, at: int, place: int) -> Any:
    if place < 0:
        return 0
    if state := inputs.state[at, place]:
        return ["unavailable", int(state == 2)]
    ttft_s, whole_s = float(inputs.ttft_s[at, place]), float(inputs.whole_s[at, place])
    return 0 if np.isnan(ttft_s) else [ttft_s, ttft_s, whole_s, 0.0, 0.0, 0]


def _cost(inputs: Inputs, at: int, place: int) -> Any:
    if place < 0 or (np.isnan(inputs.usd[at, place]) and not inputs.cold_s[at, place]):
        return 0
    return [0, _or_none(inputs.usd[at, place]), float(inputs.cold_s[at, place])]


def _or_none(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _p_adequate(inputs: Inputs, position: int, tiers: int) -> Floats:
    known = inputs.p_right.shape[1]
    if not known:
        return np.full(len(inputs), np.nan)
    own = inputs.p_right[:, position * (known - 1) // max(tiers - 1, 1)]
    adequate: Floats = 1.0 - np.maximum(0.0, inputs.p_right[:, -1] - own)
    return np.where(inputs.in_domain, adequate, np.nan)


def _difficulty(inputs: Inputs) -> Floats:
    if not inputs.p_right.shape[1]:
        return np.full(len(inputs), np.nan)
    gain: Floats = np.maximum(0.0, inputs.p_right[:, -1] - inputs.p_right[:, 0])
    return np.where(inputs.in_domain, gain, np.nan)


def _compared_pairs(rule: Expression) -> list[tuple[str, str]]:
    """Return the pairs of names that one comparison of the rule holds."""
    if rule.tree is None:
        return []
    nodes = [node for node in ast.walk(rule.tree) if isinstance(node, ast.Compare)]
    names = [sorted({child.id for child in ast.walk(node) if isinstance(child, ast.Name)}) for node in nodes]
    return [pair for some in names for pair in combinations(some, 2)]


def _position(values: Floats, constants: Sequence[float]) -> tuple[Ints, int]:
    """Return where each value lies: 2i between constants i - 1 and i, 2i + 1 at constant i; the last if missing."""
    ends = np.array(constants)
    at = np.searchsorted(ends, values, "left")
    equal = ends[np.minimum(at, len(ends) - 1)] == values
    missing = 2 * len(ends) + 1
    return np.where(np.isnan(values), missing, 2 * at + equal).astype(np.int64), missing + 1


def _compared(values: Floats, other: Floats) -> tuple[Ints, int]:
    """Return 0, 1 or 2 where `values` is below, equal to or above `other`; 3 where one of them is missing."""
    sign = np.where(values < other, 0, np.where(values == other, 1, np.where(values > other, 2, 3)))
    return sign.astype(np.int64), 4


def _orders(expected: Floats) -> list[tuple[Ints, int]]:
    """Return the order of the tiers by their expected times, as one column for each pair of them."""
    pairs = combinations(range(expected.shape[1]), 2)
    return [((expected[:, column] > expected[:, other]).astype(np.int64), 2) for column, other in pairs]


def _combined(columns: Sequence[tuple[Ints, int]], rows: int) -> Ints:
    """Return one number for each row, equal where all columns are equal."""
    keys, most = np.zeros(rows, np.int64), 1
    for column, size in columns:
        if most * size > _LIMIT:
            _, keys = np.unique(keys, return_inverse=True)
            most = int(keys.max()) + 1
        keys = keys * size + column
        most *= size
    return keys


def policy_on(basis: DecisionBasis, candidate: Policy) -> Policy:
    """Return the candidate as this basis's deployment would have it: its ladder without the unconfigured tiers."""
    without = {name: tier for name, tier in basis.policy.unconfigured.items() if name in candidate.tiers}
    there = {*without, *(tier.name for tier in basis.tiers)}
    ladder = tuple(name for name in candidate.tiers_with(there) if name not in without)
    deployed = {"ladder": ladder, "unconfigured": without}
    return made_policy(candidate.content, Path(candidate.label), deployed)
