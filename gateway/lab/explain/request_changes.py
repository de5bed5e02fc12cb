"""Change what a request has: what rules ask for, the time and the room that are left, the client's own limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from gateway.lab.explain.moves import (
    Move,
    Patch,
    RuleTests,
    adequate_of,
    crossings,
    difference_of,
    expectations,
    heads_of,
    near,
    nearest_moves,
    positions_of,
    relative,
    seen_adequate,
    through,
    unchanged,
    used_names,
    yes_or_no,
)
from policies.expression import KINDS
from policies.model import RATED, Policy
from routing.decide import Clamp, DecisionInput, hardness_of, quantile_of, rule_values
from routing.difficulty.model import Difficulty
from routing.spending import steering_of

_FLAGS: Final = {
    "has_tools": "tools",
    "wants_json": "json",
    "has_images": "vision",
    "stream": "",
    "reasoning_above": "",
}
"""Flags that may be turned, each with the capability that it needs of a tier, '' for none."""
_FEATURES: Final = {
    "tokens_in": "approx_tokens",
    "conversation_difficulty": "before",
    **{name: name for name in ("turns", "last_tier", *_FLAGS)},
}
"""The fields of the request's features, by the names that rules have for them."""
_NEEDS: Final = "needs"
"""Begins the path of a further capability that the request may do without."""
_WARM: Final = ("costs",)
_SPENT: Final = ("spent",)
_CLASSIFIED: Final = frozenset({"p_adequate", "kind", "quantile"})


def changed_request(policy: Policy, given: DecisionInput, patch: Patch) -> tuple[Policy, DecisionInput] | None:
    """Return the input of a request with these changes; None if there can be no such request."""
    changes = {_FEATURES[name]: value for (name, *_), value in patch.items() if name in _FEATURES}
    without = {str(path[1]) for path in patch if path[0] == _NEEDS}
    features = given.features._replace(**changes, further=given.features.further - without)
    room = given.room and max(1, given.room + features.approx_tokens - given.features.approx_tokens)
    room = patch.get(("room",), room)
    ttft_s = given.ttft_s
    if features.stream != given.features.stream:
        ttft_s = policy.slo.ttft.p99 if features.stream else None
    ttft_s = patch.get(("ttft_ms",), ttft_s)
    if (("room",) in patch and room < features.approx_tokens) or (("ttft_ms",) in patch and not features.stream):
        return None
    clamp = given.clamp
    if clamp is not None:
        clamp = replace(clamp, **{name: None for name in ("min_tier", "max_tier") if (name,) in patch})
        clamp = None if ("tier:",) in patch or clamp == Clamp() else clamp
    difficulty = _changed_difficulty(policy, given, features.has_images, patch)
    if difficulty is _NO_SUCH:
        return None
    if (wanted := patch.get(("conversation_difficulty",))) is not None and (
        difficulty is None or wanted < hardness_of(policy, difficulty)
    ):
        return None  # the turn by itself is harder
    budget_s = patch.get(("budget_ms",), given.budget_s)
    health, holdout, costs = given.health, given.holdout, None if _WARM in patch else given.costs
    spent = None if _SPENT in patch else given.spent
    return policy, DecisionInput(difficulty, features, health, budget_s, ttft_s, clamp, holdout, room, costs, spent)


_NO_SUCH: Final = Difficulty((), in_domain=False, model_version="")


def _changed_difficulty(policy: Policy, given: DecisionInput, images: bool, patch: Patch) -> Difficulty | None:
    """Return what the classifier says of the changed request; _NO_SUCH if it cannot say that."""
    now = given.difficulty
    named = {path for path in patch if path[0] in _CLASSIFIED}
    was_in_domain = now is not None and now.in_domain
    in_domain = patch.get(("in_domain",), was_in_domain and not (images and not given.features.has_images))
    if in_domain and images and (("in_domain",) in patch or not was_in_domain):
        return _NO_SUCH  # it abstains from requests with images
    if not in_domain:
        return _NO_SUCH if named else replace(now, in_domain=False) if was_in_domain and now is not None else now
    if not named and was_in_domain:
        return now
    positions = positions_of(policy, now)
    adequate = list(adequate_of(now)) if was_in_domain else [1.0] * (heads_of(policy, now) - 1)
    for path in named:
        if path[0] == "p_adequate":
            adequate[int(path[1])] = patch[path]
    if not was_in_domain and any(("p_adequate", str(i)) not in patch for i in positions):
        return _NO_SUCH
    kind = patch.get(("kind",), now.kind if was_in_domain and now is not None else None) or ""
    quantile = patch.get(("quantile",), now.quantile if was_in_domain and now is not None else None)
    if quantile is not None and not kind:
        if "kind" in used_names(policy) or policy.route.traffic is not None:
            return _NO_SUCH  # a quantile is one of a kind
        kind = KINDS[2]  # any, since nothing reads it
    version = now.model_version if now is not None else ""
    return Difficulty((*adequate, 1.0), True, version, kind, quantile, 1.0)


def request_things(policy: Policy, given: DecisionInput) -> list[list[Move]]:
    """Return, for each thing of the request that can matter, the moves that are worth a try."""
    features, health = given.features, list(given.health.values())
    expected = {seconds for one in health for seconds in expectations(one)}
    now = rule_values(policy, given.difficulty, features, given.budget_s)
    tests = RuleTests(policy, now)
    things: list[list[Move]] = []
    contexts = [one.context for one in health if one.context is not None] if given.room else []
    spare = given.room - features.approx_tokens
    holds = [lambda value, most=most: value + spare <= most for most in contexts]
    cuts = {*tests.cuts("tokens_in"), *(float(most - spare) for most in contexts)}
    things.append(_whole("tokens_in", features.approx_tokens, cuts, [*tests.of("tokens_in"), *holds]))
    things.append(_whole("turns", features.turns, tests.cuts("turns"), tests.of("turns")))
    if features.turns > 1:  # of a first turn, there is nothing before
        most = len(policy.tiers)
        last = [cut for cut in tests.cuts("last_tier") if cut <= most]
        things.append(_whole("last_tier", features.last_tier, last, tests.of("last_tier"), most))
        things.append(_before(policy, given, tests))
    if given.costs:
        things.append([Move(_WARM, None, "held by a provider's cache", yes_or_no(True), yes_or_no(False), 1.0)])
    if steering_of(policy, given.spent) is not None:
        things.append([Move(_SPENT, None, "budget nearly spent", yes_or_no(True), yes_or_no(False), 1.0)])
    for name, capability in _FLAGS.items():
        matters = name in tests.names
        matters |= any(capability not in one.capabilities for one in health) if capability else False
        matters |= name == "stream" and bool(expected)
        matters |= name == "has_images" and features.has_images  # with images, the classifier says nothing
        if matters:
            is_set = bool(getattr(features, name))
            things.append([Move((name,), not is_set, name, yes_or_no(is_set), yes_or_no(not is_set), 1.0)])
    things += [
        [Move((_NEEDS, name), False, f"needs {name}", yes_or_no(True), yes_or_no(False), 1.0)]
        for name in sorted(features.further)
        if any(name not in one.capabilities for one in health)
    ]
    things += [
        _budget(policy, given, tests, expected),
        _first_token(policy, given, expected),
        [
            Move(("room",), most, "room for prompt and reply", str(given.room), str(most), relative(given.room, most))
            for most in sorted(set(contexts))
            if most < given.room
        ],
        *_own_limits(given.clamp),
        *_judgements(policy, given, tests),
    ]
    return [moves for moves in things if moves]


def _whole(
    name: str, now: int, cuts: Iterable[float], tests: Sequence[Callable[[Any], Hashable]], most: float = math.inf
) -> list[Move]:
    """Return the moves of a whole number, from 0 to `most`."""
    values = {math.floor(cut) + step for cut in cuts for step in (-1, 0, 1, 2)}
    possible = sorted(value for value in values if 0 <= value <= most)
    return nearest_moves((name,), name, now, possible, tests, relative, str)


def _before(policy: Policy, given: DecisionInput, tests: RuleTests) -> list[Move]:
    """Return the moves of how hard the conversation is."""
    if given.difficulty is None:
        return []
    least, cuts = hardness_of(policy, given.difficulty), tests.cuts("conversation_difficulty")
    before = given.features.before
    return nearest_moves(
        ("conversation_difficulty",),
        "conversation_difficulty",
        None if before is None else max(least, before),
        sorted({least, 1.0, *crossings(unchanged, cuts, least, 1.0)}),
        tests.of("conversation_difficulty"),
        difference_of,
        partial(near, cuts=cuts),
    )


def _budget(policy: Policy, given: DecisionInput, tests: RuleTests, expected: set[float]) -> list[Move]:
    now, most = given.budget_s, max(policy.slo.deadline, given.budget_s)
    cuts = tests.cuts("budget_ms")
    values = {*crossings(lambda value: value * 1000, cuts, 0.0, most), *crossings(unchanged, expected, 0.0, most)}
    rules = [lambda value, test=test: test(value * 1000) for test in tests.of("budget_ms")]
    in_time = [lambda value, limit=limit: limit <= value for limit in expected]
    texts = {*cuts, *(seconds * 1000 for seconds in expected)}
    return nearest_moves(
        ("budget_ms",),
        "budget_ms",
        now,
        sorted(value for value in values if 0 < value <= most),
        [*rules, *in_time],
        relative,
        lambda value: near(value * 1000, texts),
    )


def _first_token(policy: Policy, given: DecisionInput, expected: set[float]) -> list[Move]:
    """Return the moves of the limit for a stream's first token: a client may set one below the policy's."""
    most = policy.slo.ttft.p99
    values: list[Any] = sorted(
        value for value in crossings(unchanged, expected, 0.0, math.inf) if most is None or value <= most
    )
    if most is None and given.ttft_s is not None:
        values.append(None)
    if most is not None and given.ttft_s is not None and given.ttft_s > most:
        values = []
    tests = [lambda value, limit=limit: value is None or limit <= value for limit in expected]
    texts = {seconds * 1000 for seconds in expected}
    return nearest_moves(
        ("ttft_ms",),
        "time to the first token",
        given.ttft_s,
        values,
        tests,
        relative,
        lambda value: "no limit" if value is None else f"{near(value * 1000, texts)} ms",
        same_if_missing=True,
    )


def _own_limits(clamp: Clamp | None) -> Iterator[list[Move]]:
    """Yield the limits that the client has set itself; each can be left out."""
    if clamp is None:
        return
    if clamp.min_tier is not None and clamp.min_tier == clamp.max_tier:
        yield [Move(("tier:",), None, "the client's own choice of a tier", clamp.min_tier, "none", 1.0)]
        return
    for name in ("min_tier", "max_tier"):
        tier = getattr(clamp, name)
        if tier is not None:
            yield [Move((name,), None, f"the client's own {name}", tier, "none", 1.0)]


def _judgements(policy: Policy, given: DecisionInput, tests: RuleTests) -> Iterator[list[Move]]:
    """Yield the moves of what the classifier says."""
    judged = given.difficulty is not None and given.difficulty.in_domain
    positions = positions_of(policy, given.difficulty)
    if policy.route.classifier == "none" or not tests.names & RATED:
        return
    yield [Move(("in_domain",), not judged, "in_domain", yes_or_no(judged), yes_or_no(not judged), 1.0)]
    adequate = adequate_of(given.difficulty)
    for position, tiers in positions.items():
        own = [test for tier in tiers for test in through(seen_adequate, tests.of("p_adequate", tier))]
        cuts = {cut for tier in tiers for cut in tests.cuts("p_adequate", tier)}
        values = {0.0, 1.0, *crossings(seen_adequate, cuts, 0.0, 1.0)}
        if position == 0:
            own += through(_score, tests.of("difficulty"))
            values |= crossings(_score, tests.cuts("difficulty"), 0.0, 1.0)
            cuts |= {1.0 - score for score in tests.cuts("difficulty")}
        yield nearest_moves(
            ("p_adequate", str(position)),
            f"p_adequate of {' and '.join(tiers)}",
            adequate[position] if judged else None,
            sorted(values),
            own,
            difference_of,
            partial(near, cuts=cuts),
        )
    yield from _kind_and_quantile(policy, given, tests)


def _score(adequate: float) -> float:
    return max(0.0, 1.0 - adequate)


def _kind_and_quantile(policy: Policy, given: DecisionInput, tests: RuleTests) -> Iterator[list[Move]]:
    now = given.difficulty if given.difficulty is not None and given.difficulty.in_domain else None
    version = given.difficulty.model_version if given.difficulty is not None else ""
    ranked = bool(tests.names & {"quantile", "conversation_difficulty"})
    mapped = ranked and policy.route.traffic is not None
    if "kind" in tests.names or mapped:
        kind = (now.kind or None) if now is not None else None
        every: list[Any] = [other for other in (*KINDS, None) if other != kind]
        deciles = policy.route.traffic.deciles if policy.route.traffic is not None and mapped else {}
        yield nearest_moves(
            ("kind",),
            "kind",
            kind,
            every,
            [*tests.of("kind"), lambda value: deciles.get(value) if mapped else None],
            difference_of,
            lambda value: value or "missing",
            same_if_missing=now is not None,
        )
    if not ranked:
        return
    kinds = KINDS if mapped else KINDS[:1]
    seen = [partial(_own_share, policy, version, kind) for kind in kinds]
    cuts = tests.cuts("quantile") | tests.cuts("conversation_difficulty")
    values = {0.0, 1.0, *(value for one in seen for value in crossings(one, cuts, 0.0, 1.0))}
    before = given.features.before or 0.0
    in_conversation = through(lambda share: max(share or 0.0, before), tests.of("conversation_difficulty"))
    own = [test for one in seen for test in through(one, [*tests.of("quantile"), *in_conversation])]
    yield nearest_moves(
        ("quantile",),
        "quantile",
        now.quantile if now is not None else None,
        [*sorted(values), None],
        own,
        difference_of,
        partial(near, cuts=cuts),
        same_if_missing=now is not None,
    )


def _own_share(policy: Policy, version: str, kind: str, quantile: float) -> float | None:
    """Return the quantile that rules see of the classifier's: of the surface's own requests where that is known."""
    return quantile_of(policy, Difficulty((1.0,), True, version, kind, quantile))
