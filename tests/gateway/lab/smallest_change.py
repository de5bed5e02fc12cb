"""Random decisions, and whether the change that `why_not` names for each is the smallest that flips it.

Random policies (2 to 4 tiers, rules from the grammar), requests and states of the tiers are decided; for every tier at
which a request does not start, `gateway.lab.explain.why_not` names the smallest change of each class. Checked of each:

flips      deciding again with the changed policy and input starts at that tier
smallest   no change of fewer things, or of as many by less, found by trying values on a grid, does it as well
none       where no change is said to exist, no change that is tried does it

What is tried is made here, from the facts of a request and the parts of a rule, not by the code that is checked: all
changes on a grid of every constant, its two sides and the middles between, or `brute` of them, drawn, where they are
more.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations, pairwise, product
from typing import Any

from gateway.lab.explain.why_not import Flip, Impossible, start_of, why_not
from policies.expression import KINDS, Expression
from policies.model import DeployedTier, Policy
from routing.decide import Clamp, DecisionInput, TierHealth
from routing.difficulty.model import Difficulty
from routing.features import Features
from routing.load.latency import Forecast

TIERS = ("tiny", "small", "large", "huge")
CAPABILITIES = ("tools", "json", "vision")
VERSION = "abcdef0"
NUMBERS = {
    "p_adequate": [n / 20 for n in range(1, 20)],
    "difficulty": [n / 20 for n in range(1, 20)],
    "quantile": [n / 20 for n in range(1, 20)],
    "tokens_in": [500.0 * n for n in range(1, 9)],
    "turns": [2.0, 4.0, 6.0],
    "budget_ms": [1000.0 * n for n in range(1, 10)],
}
FLAGS = ("in_domain", "has_tools", "wants_json", "has_images", "stream")
SHARES = frozenset({"p_adequate", "difficulty", "quantile"})
EDGE = 1e-6


# A rule as parts, so that its constants are known here and are not read from its text.


@dataclass(frozen=True, slots=True)
class Atom:
    """`name op constant`, a flag (`op` is ''), or `easiest constant% of its kind` (`op` is 'easiest')."""

    name: str
    op: str = ""
    constant: Any = None

    def text(self) -> str:
        if not self.op:
            return self.name
        if self.op == "easiest":
            return f"easiest {self.constant * 100:.10g}% of its kind"
        if self.op == "between":
            low, high = self.constant
            return f"{low:.10g} < {self.name} <= {high:.10g}"
        constant = self.constant if isinstance(self.constant, str) else f"{self.constant:.10g}"
        return f"{self.name} {self.op} {constant}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Atoms joined by `and` and `or`, some of them negated."""

    atoms: tuple[Atom, ...]
    joins: tuple[str, ...]
    negated: tuple[bool, ...]

    def text(self) -> str:
        parts = [
            f"not ({atom.text()})" if no else atom.text() for atom, no in zip(self.atoms, self.negated, strict=True)
        ]
        text = parts[0]
        for join, part in zip(self.joins, parts[1:], strict=True):
            text = f"({text}) {join} {part}"
        return text


def drawn_atom(rng: random.Random) -> Atom:
    kind = rng.random()
    if kind < 0.2:
        return Atom(rng.choice(FLAGS))
    if kind < 0.35:
        return Atom("kind", rng.choice(["==", "!="]), rng.choice(KINDS))
    if kind < 0.45:
        return Atom("quantile", "easiest", rng.choice(NUMBERS["quantile"]))
    name = rng.choice(list(NUMBERS))
    if kind < 0.55:
        return Atom(name, "between", tuple(sorted(rng.sample(NUMBERS[name], 2))))
    ops = ["<", "<=", ">", ">="] + (["==", "!="] if name in ("tokens_in", "turns") else [])
    return Atom(name, rng.choice(ops), rng.choice(NUMBERS[name]))


def drawn_rule(rng: random.Random) -> Rule:
    count = rng.choice([1, 1, 2, 2, 3])
    atoms = tuple(drawn_atom(rng) for _ in range(count))
    joins = tuple(rng.choice(["and", "and", "or"]) for _ in range(count - 1))
    return Rule(atoms, joins, tuple(rng.random() < 0.15 for _ in atoms))


# A request, and the state of the world, as facts.


@dataclass(frozen=True, slots=True)
class Case:
    """A policy's rules, and one request in one state of the world, as facts that can be changed one by one."""

    tiers: tuple[str, ...]
    unconfigured: tuple[str, ...]
    rules: dict[str, Rule | None]
    traffic: dict[str, tuple[float, ...]]
    deadline: float
    ttft_p99: float | None
    request: dict[str, Any]
    world: dict[str, Any]
    capabilities: dict[str, frozenset[str]]
    heads: int
    constants: dict[tuple[str, int, int], Any] = field(default_factory=dict)
    """Changed constants, by tier, atom and side of a `between`."""


def drawn_case(rng: random.Random) -> Case:
    """Draw a case in which all values agree with each other."""
    tiers = TIERS[: rng.choice([2, 2, 3, 4])]
    starts = [tier for tier in tiers if rng.random() < 0.75]
    last = rng.choice(tiers)
    starts = (
        [tiers[0], *(tier for tier in starts if tier not in (last, tiers[0]))]
        if last != tiers[0]
        else [tier for tier in starts if tier != last]
    )
    rng.shuffle(starts)
    if last != tiers[0] and tiers[0] not in starts:
        starts.append(tiers[0])
    rules: dict[str, Rule | None] = {tier: drawn_rule(rng) for tier in starts}
    rules[last] = None
    heads = rng.choice([2, 2, 3, 4])
    stream = rng.random() < 0.5
    ttft_p99 = rng.choice([None, 0.9, 2.0])
    deadline = 10.0
    in_domain = rng.random() < 0.85
    images = not in_domain and rng.random() < 0.3
    adequate = tuple(round(rng.random(), 4) for _ in range(heads - 1))
    tokens = rng.randrange(1, 5000)
    with_context = rng.random() < 0.4
    unconfigured = tuple(tier for tier in tiers if rng.random() < 0.08)
    if len(unconfigured) == len(tiers):
        unconfigured = ()
    limits: dict[str, Any] = {"min_tier": None, "max_tier": None}
    if rng.random() < 0.12:
        low, high = sorted((rng.randrange(len(tiers)), rng.randrange(len(tiers))))
        limits = {"min_tier": tiers[low], "max_tier": rng.choice([tiers[high], None])}
    request = {
        "tokens_in": tokens, "turns": rng.randrange(1, 8), "stream": stream, "has_images": images,
        "has_tools": rng.random() < 0.15, "wants_json": rng.random() < 0.15,
        "budget_s": rng.choice([deadline, round(rng.uniform(0.3, deadline), 3)]),
        "ttft_s": (ttft_p99 if rng.random() < 0.7 else min(ttft_p99 or 9, 0.4)) if stream else None,
        "spare": rng.choice([256, 1024, 4000]) if with_context else None,
        "in_domain": in_domain, "adequate": adequate if in_domain else None,
        "kind": (rng.choice(KINDS) if rng.random() < 0.95 else None) if in_domain else None, "quantile": None, **limits,
    }  # fmt: skip
    if request["kind"] is not None and rng.random() < 0.95:
        request["quantile"] = round(rng.random(), 4)
    world: dict[str, Any] = {"holdout": rng.random() < 0.03 and request["min_tier"] is None}
    with_forecasts = rng.random() < 0.5
    for tier in tiers:
        world[tier, "up"] = rng.random() > 0.12
        world[tier, "failing"] = not world[tier, "up"] and rng.random() < 0.5
        known = with_forecasts and rng.random() < 0.7 and world[tier, "up"]
        world[tier, "expected"] = (
            round(rng.choice([rng.uniform(0.05, 1.5), rng.uniform(0.1, 15)]), 3) if known else None
        )
        world[tier, "context"] = rng.choice([None, 2048, 4096, 8192]) if with_context else None
        world[tier, "configured"] = tier not in unconfigured
    capabilities = {
        tier: frozenset(what for what in CAPABILITIES if i == len(tiers) - 1 or rng.random() < 0.7)
        for i, tier in enumerate(tiers)
    }
    traffic = {}
    if rng.random() < 0.2:
        for kind in rng.sample(KINDS, 3):
            traffic[kind] = tuple(sorted(round(rng.random(), 2) for _ in range(9)))
    return Case(tiers, unconfigured, rules, traffic, deadline, ttft_p99, request, world, capabilities, heads)


def start_rules(case: Case) -> dict[str, str]:
    """Return the texts of a case's rules."""
    start = {}
    for tier, rule in case.rules.items():
        if rule is None:
            start[tier] = "otherwise"
            continue
        atoms = []
        for i, atom in enumerate(rule.atoms):
            constant = atom.constant
            if atom.op == "between":
                constant = tuple(case.constants.get((tier, i, side), constant[side]) for side in (0, 1))
            atoms.append(replace(atom, constant=case.constants.get((tier, i, -1), constant)))
        start[tier] = replace(rule, atoms=tuple(atoms)).text()
    return start


def built(case: Case) -> tuple[Policy, DecisionInput]:
    """Return the policy and the input of a case."""
    slo: dict[str, Any] = {"deadline": f"{case.deadline:.12g}s"}
    if case.ttft_p99 is not None:
        slo["ttft"] = {"p99": f"{case.ttft_p99:.12g}s"}
    route: dict[str, Any] = {"start": start_rules(case)}
    if case.traffic:
        route["traffic"] = {"classifier": VERSION, "deciles": case.traffic}
    ladder = tuple(tier for tier in case.tiers if case.world[tier, "configured"])
    out = {
        tier: DeployedTier(tier, (), case.capabilities[tier], "KEY is not set")
        for tier in case.tiers
        if tier not in ladder
    }
    rules = {"surface": "chat", "version": "0123456", "slo": slo, "tiers": list(case.tiers), "route": route}
    policy = Policy.model_validate({**rules, "ladder": ladder, "unconfigured": out})
    return policy, given_by(case)


_parsed = lru_cache(maxsize=1000)(Expression.parse)


def with_constants(policy: Policy, case: Case) -> Policy:
    """Return the policy with a case's constants in its rules; the times are in the input alone."""
    start = {tier: _parsed(text) for tier, text in start_rules(case).items()}
    return policy.model_copy(update={"route": policy.route.model_copy(update={"start": start})})


def given_by(case: Case) -> DecisionInput:
    """Return the input of a case's decision."""
    r, w = case.request, case.world
    difficulty = None
    if r["in_domain"]:
        difficulty = Difficulty((*r["adequate"], 1.0), True, VERSION, r["kind"] or "", r["quantile"], 1.0)
    elif case.heads != 3:
        difficulty = Difficulty((0.5,) * case.heads, False, VERSION)
    health = {}
    for tier in case.tiers:
        if not w[tier, "configured"]:
            continue
        up, seconds = w[tier, "up"], w[tier, "expected"]
        fresh = tier in case.unconfigured
        forecast = None
        if up and not fresh and seconds is not None:
            forecast = Forecast(seconds, seconds, seconds, 0.0, known=True)
        health[tier] = TierHealth(
            tier, case.capabilities[tier], 1, "" if up or fresh else "down", not fresh and w[tier, "failing"],
            forecast, None if fresh else w[tier, "context"],
        )  # fmt: skip
    clamp = None
    if r["min_tier"] or r["max_tier"]:
        clamp = Clamp(r["min_tier"], r["max_tier"])
    features = Features("", r["turns"], r["tokens_in"], r["has_tools"], r["wants_json"], r["has_images"], r["stream"])
    room = 0 if r["spare"] is None else r["tokens_in"] + r["spare"]
    return DecisionInput(difficulty, features, health, r["budget_s"], r["ttft_s"], clamp, w["holdout"], room)


# Changes to try.

Change = tuple[Any, Any, float]
"""What changes, its new value, and by how much."""


def around(values: Sequence[float]) -> list[float]:
    """Return the values, what lies just beside them, and the middles between them."""
    cuts = sorted(set(values))
    middles = [(one + other) / 2 for one, other in pairwise(cuts)]
    return [*(cut + side for cut in cuts for side in (-EDGE, 0.0, EDGE)), *middles]


def relative(one: float, other: float) -> float:
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if largest else 0.0


def names_in(case: Case) -> set[str]:
    return {atom.name for rule in case.rules.values() if rule for atom in rule.atoms}


def request_grid(case: Case) -> dict[str, list[tuple[Any, float]]]:
    """Return, for each fact of the request that may matter, other values and their distances."""
    r, grid = case.request, {}
    names = names_in(case)
    limits = [seconds for tier in case.tiers if (seconds := case.world[tier, "expected"]) is not None]
    tokens = {int(cut) + step for cut in NUMBERS["tokens_in"] for step in (-1, 0, 1)} | {0, 100_000}
    contexts = [most for tier in case.tiers if (most := case.world[tier, "context"]) is not None]
    if r["spare"] is not None:
        tokens |= {most - r["spare"] + step for most in contexts for step in (0, 1) if most > r["spare"]}
        grid["spare"] = [
            (most - r["tokens_in"], relative(r["tokens_in"] + r["spare"], most))
            for most in contexts if r["tokens_in"] <= most < r["tokens_in"] + r["spare"]
        ]  # fmt: skip
    grid["tokens_in"] = [(value, relative(r["tokens_in"], value)) for value in tokens]
    grid["turns"] = [(value, relative(r["turns"], value)) for value in range(10)]
    for name in ("has_tools", "wants_json", "has_images", "stream"):
        grid[name] = [(not r[name], 1.0)]
    budgets = around([0.0, *(cut / 1000 for cut in NUMBERS["budget_ms"]), *limits, case.deadline])
    grid["budget_s"] = [(v, relative(r["budget_s"], v)) for v in budgets if 0 < v <= case.deadline]
    most = case.ttft_p99
    firsts: list[tuple[Any, float]] = [
        (v, relative(r["ttft_s"], v) if r["ttft_s"] is not None else 1.0)
        for v in around([0.0, *limits]) if v > 0 and (most is None or v <= most)
    ]  # fmt: skip
    if most is None and r["ttft_s"] is not None:
        firsts.append((None, 1.0))
    grid["ttft_s"] = firsts
    if r["min_tier"] is not None and r["min_tier"] == r["max_tier"]:
        grid["pin"] = [(None, 1.0)]
    else:
        for name in ("min_tier", "max_tier"):
            if r[name] is not None:
                grid[name] = [(None, 1.0)]
    shares = [v for v in around([n / 20 for n in range(21)]) if 0 <= v <= 1]
    for i in range(case.heads - 1):
        now = r["adequate"][i] if r["in_domain"] else None
        grid[f"adequate{i}"] = [(v, abs(v - now) if now is not None else 1.0) for v in shares]
    grid["kind"] = [(kind, 1.0) for kind in (*KINDS, None) if kind != r["kind"]]
    quantiles = list(shares)
    for deciles in case.traffic.values():
        quantiles += [v for v in around([0.0, 1.0, *deciles]) if 0 <= v <= 1]
    now = r["quantile"]
    grid["quantile"] = [(v, abs(v - now) if now is not None else 1.0) for v in quantiles]
    if now is not None:
        grid["quantile"].append((None, 1.0))
    grid["in_domain"] = [(not r["in_domain"], 1.0)]
    if not {"p_adequate", "difficulty"} & names:
        for i in range(case.heads - 1):
            del grid[f"adequate{i}"]
    return {name: values for name, values in grid.items() if values}


def with_request(case: Case, changes: Sequence[Change]) -> Case | None:
    """Return the case with other facts; None if no request can have them."""
    r = dict(case.request)
    changed = {name: value for name, value, _ in changes}
    judged = {name for name in changed if name in ("kind", "quantile") or name.startswith("adequate")}
    for name, value in changed.items():
        if name == "pin":
            r["min_tier"] = r["max_tier"] = None
        elif name == "stream":
            r["stream"] = value
            r["ttft_s"] = case.ttft_p99 if value else None
        elif not name.startswith("adequate") and name != "ttft_s":
            r[name] = value
    if "ttft_s" in changed:
        if not r["stream"]:
            return None
        r["ttft_s"] = changed["ttft_s"]
    if "spare" in changed and r["spare"] is not None:
        r["spare"] += case.request["tokens_in"] - r["tokens_in"]
        if r["spare"] < 0:
            return None
    elif r["spare"] is not None and r["tokens_in"] + r["spare"] < 1:
        return None
    if r["has_images"] and not case.request["has_images"]:
        if changed.get("in_domain"):
            return None
        r["in_domain"] = False
    if not r["in_domain"]:
        if judged:
            return None
        r.update(adequate=None, kind=None, quantile=None)
        return replace(case, request=r)
    if r["has_images"] and not case.request["in_domain"]:
        return None
    adequate = list(case.request["adequate"] or [1.0] * (case.heads - 1))
    for name in judged:
        if name.startswith("adequate"):
            adequate[int(name[8:])] = changed[name]
    r["adequate"] = tuple(adequate)
    if not case.request["in_domain"]:
        if any(f"adequate{i}" not in changed for i in read_positions(case)):
            return None
        if r["kind"] is None and r["quantile"] is not None and "kind" not in names_in(case) and not case.traffic:
            r["kind"] = "chat"
    if r["quantile"] is not None and r["kind"] is None:
        return None
    return replace(case, request=r)


def read_positions(case: Case) -> set[int]:
    """Return the trained tiers whose `p_adequate` a rule reads."""
    found = set()
    for tier, rule in case.rules.items():
        position = case.tiers.index(tier) * (case.heads - 1) // max(len(case.tiers) - 1, 1)
        if rule and any(atom.name == "p_adequate" for atom in rule.atoms) and position < case.heads - 1:
            found.add(position)
    return found | ({0} if "difficulty" in names_in(case) else set())


def policy_grid(case: Case) -> dict[Any, list[tuple[Any, float]]]:
    """Return, for each constant of the policy, other values and their distances."""
    r = case.request
    limits = [seconds for tier in case.tiers if (seconds := case.world[tier, "expected"]) is not None]
    policy, given = built(case)
    grid: dict[Any, list[tuple[Any, float]]] = {}
    for tier, rule in case.rules.items():
        for i, atom in enumerate(rule.atoms if rule else ()):
            for side in (0, 1) if atom.op == "between" else (-1,):
                if not atom.op:
                    continue
                now = atom.constant[side] if atom.op == "between" else atom.constant
                if isinstance(now, str):
                    grid[tier, i, side] = [(kind, 1.0) for kind in KINDS if kind != now]
                    continue
                seen = seen_of(case, policy, given, tier, atom.name)
                values = around([0.0, 1.0, *([] if seen is None else [seen])]) if atom.name in SHARES else []
                if atom.name in ("tokens_in", "turns"):
                    values = [0.0, 1e5, *(r[atom.name] + step for step in (-1.0, 0.0, 1.0))]
                elif atom.name == "budget_ms":
                    values = [v for v in around([1.0, r["budget_s"] * 1000]) if v >= 0]
                if atom.name in SHARES:
                    low = 1e-9 if atom.op == "easiest" else 0.0
                    grid[tier, i, side] = [(v, abs(v - now)) for v in values if low <= v <= 1]
                else:
                    grid[tier, i, side] = [(v, relative(now, v)) for v in values if v >= 0]
    spent = case.deadline - r["budget_s"]
    deadlines = around([spent, *(cut / 1000 + spent for cut in NUMBERS["budget_ms"]), *(one + spent for one in limits)])
    grid["deadline"] = [(v, relative(case.deadline, v)) for v in [*deadlines, 100.0] if v > spent]
    if r["stream"]:
        now = case.ttft_p99
        gone = now - r["ttft_s"] if now is not None and r["ttft_s"] is not None else 0.0
        firsts: list[tuple[Any, float]] = [
            (v, relative(now, v) if now is not None else 1.0)
            for v in around([gone, *(one + gone for one in limits)])
            if v > max(gone, 0.0)
        ]
        grid["ttft_p99"] = [*firsts, (None, 1.0)] if now is not None else firsts
    return grid


def seen_of(case: Case, policy: Policy, given: DecisionInput, tier: str, name: str) -> float | None:
    """Return the share that a tier's rule sees under this name."""
    if given.difficulty is None or not given.difficulty.in_domain:
        return None
    if name == "difficulty":
        return given.difficulty.score
    if name == "p_adequate":
        return given.difficulty.p_adequate_of(case.tiers.index(tier), len(case.tiers))
    if given.difficulty.quantile is None:
        return None
    own = policy.route.share_easier(given.difficulty.kind, given.difficulty.quantile, VERSION)
    return given.difficulty.quantile if own is None else own


def with_policy(case: Case, changes: Sequence[Change]) -> Case | None:
    """Return the case with other constants."""
    r, made = dict(case.request), case
    constants = dict(case.constants)
    for name, value, _ in changes:
        if name == "deadline":
            r["budget_s"] += value - case.deadline
            made = replace(made, deadline=value)
        elif name == "ttft_p99":
            if case.ttft_p99 is None:
                r["ttft_s"] = value if r["ttft_s"] is None else min(value, r["ttft_s"])
            elif value is None or r["ttft_s"] is None:
                r["ttft_s"] = value
            else:
                r["ttft_s"] += value - case.ttft_p99
            made = replace(made, ttft_p99=value)
        else:
            constants[name] = value
    if r["budget_s"] <= 0 or (r["ttft_s"] is not None and r["ttft_s"] <= 0):
        return None
    return replace(made, request=r, constants=constants)


def world_grid(case: Case) -> dict[Any, list[tuple[Any, float]]]:
    """Return, for each state of the world, other states and their distances."""
    r, w = case.request, case.world
    grid: dict[Any, list[tuple[Any, float]]] = {}
    limit = r["budget_s"] if r["ttft_s"] is None else min(r["budget_s"], r["ttft_s"])
    every = [w[tier, "expected"] or 0.0 for tier in case.tiers]
    room = 0 if r["spare"] is None else r["tokens_in"] + r["spare"]
    for tier in case.tiers:
        if tier in case.unconfigured:
            grid[tier, "configured"] = [(True, 1.0)]
            continue
        grid[tier, "up"] = [(not w[tier, "up"], 1.0)]
        if w[tier, "up"]:
            now = w[tier, "expected"]
            values = [v for v in around([0.0, limit, *every, 100.0]) if v >= 0]
            grid[tier, "expected"] = [(v, relative(now, v) if now is not None else 1.0) for v in values]
        if room:
            now = w[tier, "context"]
            grid[tier, "context"] = [(v, relative(now, v) if now is not None else 1.0) for v in (room, room - 1)]
    if w["holdout"]:
        grid["holdout"] = [(False, 1.0)]
    return grid


def with_world(case: Case, changes: Sequence[Change]) -> Case | None:
    """Return the case in another state of the world."""
    w = dict(case.world)
    changed = {name for name, _, _ in changes}
    for name, value, _ in changes:
        w[name] = value
        if name[1:] == ("up",):
            w[name[0], "failing"] = False
            w[name[0], "expected"] = None
            if (name[0], "expected") in changed:
                return None
    return replace(case, world=w)


def with_ladder(policy: Policy, case: Case) -> Policy:
    """Return the policy with the ladder of a case's configured tiers."""
    ladder = tuple(tier for tier in case.tiers if case.world[tier, "configured"])
    out = {tier: one for tier, one in policy.unconfigured.items() if tier not in ladder}
    return policy.model_copy(update={"ladder": ladder, "unconfigured": out})


CLASSES: Mapping[str, Any] = {
    "request": (request_grid, with_request, lambda policy, _: policy),
    "policy": (policy_grid, with_policy, with_constants),
    "world": (world_grid, with_world, with_ladder),
}
"""How the changes of a class are drawn, made in a case, and made in its policy."""


def tried(
    rng: random.Random, grid: dict[Any, list[tuple[Any, float]]], most_things: int, count: int
) -> Iterator[list[Change]]:
    """Yield changes of up to so many things: all of them, or `count` of each number of things where they are more."""
    for things in range(1, min(most_things, len(grid)) + 1):
        sizes = [math.prod(len(grid[name]) for name in names) for names in combinations(grid, things)]
        if sum(sizes) <= count:
            for names in combinations(grid, things):
                for values in product(*(grid[name] for name in names)):
                    yield [(name, *value) for name, value in zip(names, values, strict=True)]
            continue
        for _ in range(count):
            yield [(name, *rng.choice(grid[name])) for name in rng.sample(list(grid), things)]


@dataclass(slots=True)
class Tally:
    """What came of the checks, by class, and the cases that failed."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    decisions: int = 0
    wrong_decisions: int = 0
    tried: int = 0
    failures: list[str] = field(default_factory=list)


def check(seed: int, brute: int, tally: Tally) -> None:
    """Draw one decision, ask why not for every other tier, and check the answers."""
    rng = random.Random(seed)
    case = drawn_case(rng)
    policy, given = built(case)
    start = start_of(policy, given)
    right = True
    for target in case.tiers:
        if target == start:
            continue
        answer = why_not(policy, given, target)
        for name in CLASSES:
            found = getattr(answer, name)
            problem = _problem(rng, case, policy, target, name, found, brute, tally)
            outcome = "wrong" if problem else "impossible" if isinstance(found, Impossible) else f"{len(found.moves)}"
            tally.counts[name, outcome] += 1
            if problem:
                right = False
                tally.failures.append(f"seed {seed}, {start} -> {target}, {name}: {problem}")
    tally.decisions += 1
    tally.wrong_decisions += not right


def _problem(
    rng: random.Random, case: Case, policy: Policy, target: str, name: str, found: Flip | Impossible, brute: int,
    tally: Tally,
) -> str:  # fmt: skip
    """Return what is wrong with an answer; '' if nothing."""
    grid_of, changed, made = CLASSES[name]
    if isinstance(found, Flip):
        if start_of(found.policy, found.given) != target:
            return "deciding again does not start there"
        things, distance = len(found.moves), found.distance
        said = f"{[(move.path, move.value, move.distance) for move in found.moves]}"
    else:
        if not found.searched:
            return found.reason
        things, distance, said = 4, math.inf, found.reason
    count = brute // 3 if name == "policy" else brute  # making a policy takes the longest
    for changes in tried(rng, grid_of(case), things, count):
        far = math.fsum(change[2] for change in changes)
        # Constants of a policy are rounded to what people write, at most 1% further away.
        if len(changes) == things and far >= distance * (0.99 if name == "policy" else 1) - 3 * EDGE * things:
            continue
        other = changed(case, changes)
        if other is None:
            continue
        tally.tried += 1
        if start_of(made(policy, other), given_by(other)) == target:
            return f"{changes} does it, and it said {said}"
    return ""
