"""Where a request starts, and which tiers may follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from policies.model import DeployedTier, Policy, Traffic
from routing.decide import (
    Clamp,
    Decision,
    DecisionInput,
    NoTierError,
    TierCost,
    TierHealth,
    clause_of,
    decide,
    rule_values,
)
from routing.difficulty.model import Difficulty
from routing.features import Features
from routing.load.latency import Forecast

TIERS = ("local", "middle", "hosted")
EASY = Difficulty(p_right=(0.8, 0.9), in_domain=True, model_version="v1")
HARD = Difficulty(p_right=(0.05, 0.95), in_domain=True, model_version="v1")
STRANGE = Difficulty(p_right=(0.8, 0.9), in_domain=False, model_version="v1")


def policy(**start: str) -> Policy:
    rules: dict[str, Any] = {
        "surface": "chat",
        "version": "0123456789",
        "slo": {"deadline": "10s"},
        "tiers": list(TIERS),
        "route": {"start": start or {"local": "p_adequate >= 0.7 and tokens_in < 3000", "hosted": "otherwise"}},
    }
    return Policy.model_validate(rules)


def features(**changes: Any) -> Features:
    known: dict[str, Any] = {"text": "hi", "turns": 1, "approx_tokens": 10}
    return Features(**known | changes)


def health(**changes: Any) -> dict[str, TierHealth]:
    """Every tier can do everything and is well, unless `changes` says why not, or what it can."""
    everything = frozenset({"tools", "json", "vision", "audio"})
    found = {}
    contexts: dict[str, int] = changes.pop("contexts", {})
    for name in TIERS:
        change = changes.get(name, "")
        well = not isinstance(change, str)
        found[name] = TierHealth(
            name, frozenset(change) if well else everything, 1, "" if well else change, context=contexts.get(name)
        )
    return found


def decided_by(
    rules: Policy,
    difficulty: Difficulty | None,
    features: Features,
    health: Mapping[str, TierHealth],
    budget_s: float,
    clamp: Clamp | None = None,
    **more: Any,
) -> Decision:
    return decide(rules, DecisionInput(difficulty, features, health, budget_s, clamp=clamp, **more))


def decided(difficulty: Difficulty | None = EASY, clamp: Clamp = Clamp(), **changes: Any) -> Decision:
    return decided_by(policy(), difficulty, features(), health(**changes), 10.0, clamp)


def test_an_easy_request_starts_cheap() -> None:
    """The first rule that holds names the tier; the stronger ones follow; the reason is the rule."""
    decision = decided(EASY)
    assert decision.tiers == TIERS
    assert decision.fallbacks == ()
    assert decision.reason == "local: p_adequate >= 0.7 and tokens_in < 3000"
    assert decision.stand_in == ""


def test_a_hard_request_starts_strong() -> None:
    """Weaker tiers than the one that was wanted are kept for the case that it fails, the strongest of them first."""
    decision = decided(HARD)
    assert decision.tiers == ("hosted",)
    assert decision.fallbacks == ("middle", "local")


@pytest.mark.parametrize("difficulty", [STRANGE, None])
def test_what_the_classifier_does_not_know_it_does_not_decide(difficulty: Difficulty | None) -> None:
    """Out of its domain, or absent, the classifier makes no comparison hold; a rule can ask for just that."""
    assert decided(difficulty).tiers == ("hosted",)
    rules = policy(local="p_adequate >= 0.7 or not in_domain", hosted="otherwise")
    assert decided_by(rules, difficulty, features(), health(), 10.0).tiers == TIERS


CHAT = replace(EASY, kind="chat", quantile=0.35)


@pytest.mark.parametrize(
    ("difficulty", "start"),
    [
        (CHAT, "local"),
        (replace(CHAT, quantile=0.41), "middle"),
        (replace(CHAT, kind="code"), "middle"),
        (replace(CHAT, kind="maths"), "hosted"),
        (replace(CHAT, kind="", in_domain=False), "hosted"),
        (None, "hosted"),
    ],
)
def test_a_rule_can_ask_for_the_easiest_of_a_kind(difficulty: Difficulty | None, start: str) -> None:
    """By its rank within its kind; where no kind is near neither its kind nor its rank makes a comparison hold."""
    rules = policy(
        local="kind == chat and easiest 40% of its kind",
        middle="kind != maths and easiest 60% of its kind",
        hosted="otherwise",
    )
    assert decided_by(rules, difficulty, features(), health(), 10.0).tiers[0] == start


def test_the_surfaces_own_traffic_sets_what_a_quantile_means() -> None:
    """Where the surface's chat is easier than the reference's, its easiest 40% reach less far; other kinds stay."""
    deciles = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    rules = policy(local="easiest 40% of its kind", hosted="otherwise")
    traffic = Traffic.model_validate({"classifier": "a0a0a0a", "deciles": {"chat": deciles}})
    rules = rules.model_copy(update={"route": rules.route.model_copy(update={"traffic": traffic})})

    def share_easier(quantile: float, kind: str = "chat", version: str = "a0a0a0a") -> float:
        said = replace(CHAT, kind=kind, quantile=quantile, model_version=version)
        return float(rule_values(rules, said, features(), 1.0)["quantile"])

    assert [share_easier(quantile) for quantile in (0.0, 0.05, 0.25, 0.3, 0.8, 0.9, 1.0)] == pytest.approx(
        [0.0, 0.1, 0.35, 0.4, 0.9, 0.95, 1.0]
    )
    assert share_easier(0.35, kind="code") == 0.35
    assert share_easier(0.35, version="b1b1b1b") == 0.35, "measured with another classifier"


def test_many_equal_requests_are_all_among_the_easiest_or_none_is() -> None:
    """Where half of a surface's requests are alike, they count as harder than only what is below them."""
    traffic = Traffic.model_validate({"classifier": "a0a0a0a", "deciles": {"chat": [0.1, 0.2, *[0.3] * 5, 0.5, 0.6]}})
    assert traffic.share_easier("chat", 0.3) == pytest.approx(0.3)
    assert traffic.share_easier("chat", 0.31) == pytest.approx(0.705)
    assert traffic.share_easier("maths", 0.3) is None


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("tokens_in > 100", {"approx_tokens": 101}),
        ("turns >= 3", {"turns": 3}),
        ("has_tools", {"has_tools": True}),
        ("wants_json", {"wants_json": True}),
        ("has_images", {"has_images": True}),
        ("stream", {"stream": True}),
    ],
)
def test_rules_see_the_request(rule: str, changes: dict[str, Any]) -> None:
    """Every feature that a rule may name moves the start."""
    rules = policy(middle=rule, local="otherwise")
    assert decided_by(rules, EASY, features(), health(), 10.0).tiers[0] == "local"
    assert decided_by(rules, EASY, features(**changes), health(), 10.0).tiers[0] == "middle"


def test_rules_see_the_budget() -> None:
    """So does what is left of the deadline, in milliseconds."""
    rules = policy(local="budget_ms < 500", hosted="otherwise")
    assert decided_by(rules, EASY, features(), health(), 0.4).tiers[0] == "local"
    assert decided_by(rules, EASY, features(), health(), 4.0).tiers[0] == "hosted"
    assert rule_values(rules, None, features(), 0.4)["budget_ms"] == 400


@pytest.mark.parametrize(
    ("changes", "capability"),
    [
        ({"has_tools": True}, "tools"),
        ({"wants_json": True}, "json"),
        ({"has_images": True}, "vision"),
        ({"further": frozenset({"audio"})}, "audio"),
    ],
)
def test_a_tier_without_the_capability_is_left_out(changes: dict[str, Any], capability: str) -> None:
    """What a request needs, every tier that may answer it can do; the next stronger one starts instead."""
    others = {"tools", "json", "vision", "audio"} - {capability}
    decision = decided_by(policy(), EASY, features(**changes), health(local=others), 10.0)
    assert (decision.tiers, decision.fallbacks, decision.stand_in) == (("middle", "hosted"), (), "")


def test_nobody_can() -> None:
    """A request that no tier could ever serve is the caller's fault."""
    with pytest.raises(NoTierError, match="vision") as caught:
        decided_by(policy(), EASY, features(has_images=True), health(local=(), middle=(), hosted=()), 10.0)
    assert not caught.value.capable
    assert caught.value.lacking == "vision"


@pytest.mark.parametrize(
    ("needed", "hosted", "message", "lacking"),
    [
        ({"n"}, (), "asked: n$", "n"),
        ({"background", "audio"}, ("audio",), "asked: background$", "background"),
        ({"service_tier_flex", "files"}, ("files",), "asked: service_tier_flex$", "service_tier_flex"),
        ({"audio"}, (), "asked: audio$", "audio"),
        ({"n", "json"}, ("json",), "asked: json, n$", "json"),
    ],
)
def test_what_nobody_can_is_named(needed: set[str], hosted: tuple[str, ...], message: str, lacking: str) -> None:
    """What no tier can do is named; where each can do a part, all that is needed is."""
    able = health(local=("n",) if "json" in needed else (), middle=(), hosted=hosted)
    with pytest.raises(NoTierError, match=message) as caught:
        decided_by(policy(), EASY, features(further=frozenset(needed)), able, 10.0)
    assert (caught.value.capable, caught.value.lacking) == (False, lacking)


def test_an_unavailable_start_is_said() -> None:
    """When the wanted tier cannot answer, a stronger one does, and the decision says why."""
    decision = decided(EASY, local="failing")
    assert (decision.tiers, decision.fallbacks) == (("middle", "hosted"), ())
    assert decision.stand_in == "local is failing"


def test_a_weaker_tier_stands_in_for_the_strongest() -> None:
    """When nothing at or above the wanted tier can answer, the strongest of the weaker ones does."""
    decision = decided(HARD, hosted="unconfigured: no key")
    assert (decision.tiers, decision.fallbacks) == (("middle",), ("local",))
    assert decision.stand_in == "hosted is unconfigured: no key"


def test_an_unavailable_tier_further_up_is_skipped() -> None:
    """A tier that rests is not escalated to; that alone does not make the answer a degraded one."""
    decision = decided(EASY, middle="asking for a pause")
    assert (decision.tiers, decision.stand_in) == (("local", "hosted"), "")


def test_nobody_is_there() -> None:
    """When no tier can answer now, that is said, and it is not the caller's fault."""
    with pytest.raises(NoTierError, match="local is down") as caught:
        decided(EASY, local="down", middle="down", hosted="down")
    assert caught.value.capable


@pytest.mark.parametrize(
    ("clamp", "difficulty", "tiers", "fallbacks"),
    [
        (Clamp(min_tier="middle"), EASY, ("middle", "hosted"), ()),
        (Clamp(max_tier="middle"), HARD, ("middle",), ("local",)),
        (Clamp("middle", "middle"), EASY, ("middle",), ()),
        (Clamp("local", "local"), HARD, ("local",), ()),
    ],
)
def test_a_request_keeps_within_its_own_limits(
    clamp: Clamp, difficulty: Difficulty, tiers: tuple[str, ...], fallbacks: tuple[str, ...]
) -> None:
    """Tiers beyond the request's own limits neither start, nor follow, nor stand in."""
    decision = decided(difficulty, clamp)
    assert (decision.tiers, decision.fallbacks) == (tiers, fallbacks)


def test_a_pinned_tier_has_no_stand_in() -> None:
    """A request for one tier alone fails when that tier cannot answer."""
    with pytest.raises(NoTierError) as caught:
        decided(EASY, Clamp("middle", "middle"), middle="down")
    assert caught.value.capable


def test_limits_that_cross() -> None:
    """A lowest tier above the highest is the caller's fault."""
    with pytest.raises(NoTierError) as caught:
        decided(EASY, Clamp(min_tier="hosted", max_tier="local"))
    assert not caught.value.capable


def test_a_failing_tier_is_better_than_none() -> None:
    """When every tier has been failing the wanted one is asked all the same; one that refuses our key is no use."""
    failing = {name: TierHealth(name, frozenset(), 1, "failing", failing=True) for name in TIERS}
    decision = decided_by(policy(), EASY, features(), failing, 5.0)
    assert (decision.tiers[0], decision.weaker) == ("local", False)
    refused = {name: TierHealth(name, frozenset(), 1, "refusing our key") for name in TIERS}
    with pytest.raises(NoTierError):
        decided_by(policy(), EASY, features(), refused, 5.0)


def slow(name: str, ttft_s: float, *, whole_s: float = 0.0, cold: bool = False) -> TierHealth:
    """A tier that can do everything, and whose next first token is expected then."""
    forecast = Forecast(ttft_s, 2 * ttft_s, whole_s, queue_s=ttft_s / 2, known=True, cold=cold)
    return TierHealth(name, frozenset({"tools", "json", "vision"}), 1, forecast=forecast)


def rushed(stream: bool = True, **changes: TierHealth) -> Decision:
    """The decision on an easy request whose first token is due in 900 ms."""
    return decided_by(policy(), EASY, features(stream=stream), health() | changes, 10.0, ttft_s=0.9 if stream else None)


def test_an_easy_request_goes_elsewhere_when_its_tier_is_slow_now() -> None:
    """The cheapest adequate tier that is expected in time starts; the decision says what was wrong with the other."""
    decision = rushed(local=slow("local", 2.0))
    assert decision.tiers == ("middle", "hosted")
    assert decision.fallbacks == ("local",)
    expected = "2000 ms expected to a first token, 1000 ms of it in line, 900 ms left"
    assert decision.stand_in == f"local is slow now: {expected}"
    assert not decision.weaker
    assert rushed(local=slow("local", 8.0, cold=True)).stand_in.startswith("local is cold: 8000 ms expected")


def test_a_tier_in_time_starts_though_others_are_faster() -> None:
    """Good enough in time is what the policy asks for; faster and dearer is not."""
    decision = rushed(local=slow("local", 0.8), middle=slow("middle", 0.1))
    assert decision.tiers[0] == "local"
    assert decision.stand_in == ""


def test_when_none_is_in_time_the_fastest_starts() -> None:
    """It will be late; the least late is asked."""
    tiers = {"local": slow("local", 5.0), "middle": slow("middle", 2.0), "hosted": slow("hosted", 3.0)}
    assert rushed(**tiers).tiers == ("middle", "hosted")


def test_json_is_held_against_the_time_of_the_whole_answer() -> None:
    """Nobody sees its first token."""
    assert rushed(stream=False, local=slow("local", 2.0, whole_s=9.0)).tiers[0] == "local"
    assert rushed(stream=False, local=slow("local", 2.0, whole_s=11.0)).tiers[0] == "middle"


def test_a_held_out_request_starts_at_the_strongest_tier() -> None:
    """Whatever its difficulty; what it needs of a tier still counts."""
    decision = decided_by(policy(), EASY, features(), health(), 10.0, holdout=True)
    assert decision.tiers == ("hosted",)
    assert "held out" in decision.reason
    unable = health(hosted=("json",))
    assert decided_by(policy(), EASY, features(has_tools=True), unable, 10.0, holdout=True).tiers == ("middle",)


def laddered(*missing: str, capabilities: Iterable[str] = (), **start: str) -> Policy:
    """The policy where these tiers lack a key, and could do that much with one."""
    can = frozenset(capabilities)
    unconfigured = {name: DeployedTier(name, (), can, f"{name.upper()}_KEY is not set") for name in missing}
    ladder = tuple(name for name in TIERS if name not in missing)
    return policy(**start).model_copy(update={"ladder": ladder, "unconfigured": unconfigured})


NO_HOSTED = "hosted is not configured: HOSTED_KEY is not set"


def test_the_last_configured_tier_is_the_last_of_the_ladder() -> None:
    """What would have gone to a tier without its key starts at the strongest there is, and nothing stands in."""
    decision = decided_by(laddered("hosted"), HARD, features(), health(), 10.0)
    assert (decision.tiers, decision.fallbacks) == (("middle",), ("local",))
    assert (decision.stand_in, decision.weaker, decision.missing) == ("", False, ())
    assert decision.reason == f"hosted: otherwise; {NO_HOSTED}"


def test_a_rule_for_a_tier_without_its_key_means_the_next_stronger_one() -> None:
    """Not a weaker one, where there is a choice."""
    rules = laddered("middle", local="p_adequate >= 0.7", middle="otherwise")
    decision = decided_by(rules, HARD, features(), health(), 10.0)
    assert (decision.tiers, decision.fallbacks) == (("hosted",), ("local",))
    assert decision.reason == "middle: otherwise; middle is not configured: MIDDLE_KEY is not set"


def test_one_configured_tier_is_alone_and_the_reason_names_the_others() -> None:
    """Whatever the rules say; nothing follows, and nothing is missing."""
    decision = decided_by(laddered("middle", "hosted"), HARD, features(), health(), 10.0)
    assert decision.tiers == ("local",)
    assert (decision.stand_in, decision.missing) == ("", ())
    assert decision.reason == f"local alone is open to it; middle is not configured: MIDDLE_KEY is not set; {NO_HOSTED}"


def test_a_held_out_request_starts_at_the_strongest_configured_tier() -> None:
    """The others are measured against what can be had."""
    decision = decided_by(laddered("hosted"), EASY, features(), health(), 10.0, holdout=True)
    assert (decision.tiers, decision.reason) == (
        ("middle",),
        f"middle: held out, to measure the others against; {NO_HOSTED}",
    )


@pytest.mark.parametrize("clamp", [Clamp("hosted", "hosted"), Clamp(min_tier="hosted")])
def test_who_asks_for_a_tier_without_its_key_is_told_which_is_missing(clamp: Clamp) -> None:
    """It is not the caller's fault, and no weaker tier answers instead."""
    with pytest.raises(NoTierError, match="no tier can answer this: " + NO_HOSTED) as caught:
        decided_by(laddered("hosted"), EASY, features(), health(), 10.0, clamp)
    assert caught.value.capable


def test_limits_may_name_a_tier_without_its_key_and_still_leave_others() -> None:
    """At least `middle` is met by a stronger tier, at most `hosted` by weaker ones; no limit is overstepped for it."""
    tiers = {}
    for name, missing, clamp in (
        ("least", "middle", Clamp(min_tier="middle")),
        ("most", "hosted", Clamp(max_tier="hosted")),
    ):
        decision = decided_by(laddered(missing), EASY, features(), health(), 10.0, clamp)
        tiers[name] = (*decision.tiers, *decision.fallbacks)
    assert tiers == {"least": ("hosted",), "most": ("local", "middle")}
    with pytest.raises(NoTierError, match="local is not configured"):
        decided_by(laddered("local"), EASY, features(), health(), 10.0, Clamp(max_tier="local"))


def test_what_only_a_tier_without_its_key_could_do_is_not_the_callers_fault() -> None:
    """The key is named; where no tier could do it with all its keys, the caller asks for too much."""
    seeing = {"hosted": ("vision",), "middle": (), "local": ()}
    for capabilities, message, capable in ((("vision",), NO_HOSTED, True), ((), "asked: vision", False)):
        rules = laddered("hosted", capabilities=capabilities)
        with pytest.raises(NoTierError, match=message) as caught:
            decided_by(rules, EASY, features(has_images=True), health(**seeing), 10.0)
        assert caught.value.capable is capable


def test_no_tier_is_configured_at_all() -> None:
    """Every missing variable is named."""
    with pytest.raises(NoTierError, match=r"LOCAL_KEY is not set; .*MIDDLE_KEY is not set; .*HOSTED_KEY") as caught:
        decided_by(laddered(*TIERS), EASY, features(), {}, 10.0)
    assert caught.value.capable


def of_room(room: int, clamp: Clamp = Clamp(), **changes: Any) -> Decision:
    """The decision for an easy request that may take so many tokens; local holds 4,096, middle 8,192."""
    known = health(contexts={"local": 4096, "middle": 8192}, **changes)
    return decided_by(policy(), EASY, features(), known, 10.0, clamp, room=room)


def test_a_tier_that_does_not_hold_the_request_is_not_asked() -> None:
    """It starts at the next one that holds it, and the reason gives both numbers."""
    assert of_room(4096).tiers == TIERS
    decision = of_room(4097)
    assert (decision.tiers, decision.fallbacks) == (("middle", "hosted"), ())
    assert "local holds 4096 tokens, and this may take 4097" in decision.reason
    alone = of_room(9000)
    assert (alone.tiers, alone.fallbacks) == (("hosted",), ())
    assert "middle holds 8192 tokens" in alone.reason


def test_a_tier_that_may_hold_it_is_better_than_none() -> None:
    """The room is a bound: where no tier that surely holds the request can answer, the smaller ones are asked."""
    down = of_room(9000, hosted="failing")
    assert down.tiers == ("local", "middle")
    assert of_room(9000, Clamp("local", "local")).tiers == ("local",)


def test_what_a_tier_cannot_do_is_not_made_up_for() -> None:
    """A tier without the capability stays out, however large the request is."""
    known = health(local=("json",), middle=("tools",), contexts={"middle": 8192, "hosted": 8192})
    decision = decided_by(policy(), EASY, features(has_tools=True), known, 10.0, room=9000)
    assert decision.tiers == ("middle", "hosted")
    assert "local cannot do tools" in decision.reason


def costing(**usd: float | None) -> dict[str, TierCost]:
    return {name: TierCost(900 if name == "local" else 10, one) for name, one in usd.items()}


EASY_RULES = policy(local="p_adequate >= 0.9", middle="p_adequate >= 0.5", hosted="otherwise")
SURE = Difficulty(p_right=(0.9, 0.9), in_domain=True, model_version="v1")


def test_an_easy_turn_goes_on_where_the_conversation_is_warm_while_that_costs_less() -> None:
    """At the cheapest of the tiers that are enough; equal costs, and costs that are not known, go by the rule."""

    def start(costs: dict[str, TierCost] | None, **more: Any) -> str:
        return decided_by(EASY_RULES, SURE, features(), health(), 10.0, costs=costs, **more).tiers[0]

    assert start(costing(local=0.03, middle=0.03, hosted=0.02)) == "hosted"
    assert start(costing(local=0.03, middle=0.01, hosted=0.02)) == "middle"
    assert start(costing(local=0.02, middle=0.02, hosted=0.02)) == "local"
    assert start(costing(local=None, middle=0.01, hosted=0.02)) == "local"
    assert start(costing(local=0.03, middle=None, hosted=0.02)) == "hosted"
    assert start(None) == start({}) == "local"
    assert start(costing(local=0.03, middle=0.03, hosted=0.02), clamp=Clamp(max_tier="middle")) == "local"
    ill = health(hosted="ejected")
    found = decided_by(EASY_RULES, SURE, features(), ill, 10.0, costs=costing(local=0.03, middle=0.05, hosted=0.01))
    assert found.tiers[0] == "local"
    ignores = EASY_RULES.model_copy(update={"route": EASY_RULES.route.model_copy(update={"weigh_switching": False})})
    found = decided_by(ignores, SURE, features(), health(), 10.0, costs=costing(local=0.03, hosted=0.02))
    assert found.tiers[0] == "local"


def test_the_reason_says_what_switching_would_cost() -> None:
    """After the rule that held."""
    found = decided_by(EASY_RULES, SURE, features(), health(), 10.0, costs=costing(local=0.03, hosted=0.02))
    assert found.reason == (
        "local: p_adequate >= 0.9; goes on at hosted: local would cost $0.03 until a harder turn, as it reads 900 "
        "tokens cold, hosted $0.02"
    )
    assert clause_of(EASY_RULES, found) == "route.start.local" and not found.stand_in


@pytest.mark.parametrize("usd", [None, 0.0, 5.0])
def test_a_turn_that_asks_for_a_stronger_tier_gets_it_whatever_it_costs(usd: float | None) -> None:
    """However warm and cheap a weaker one is, and however long the stronger one has to read."""
    costs = {"local": TierCost(0, 0.0), "middle": TierCost(0, 0.0), "hosted": TierCost(90_000, usd, 50.0)}
    found = decided_by(EASY_RULES, HARD, features(), health(), 10.0, costs=costs)
    assert found.tiers[0] == "hosted" and found.reason == "hosted: otherwise"


def test_what_is_warm_but_late_leaves_the_turn_to_one_in_time() -> None:
    """A late answer is missed, whatever it saves; where all are late, the fastest has it."""
    costs = costing(local=0.03, middle=0.03, hosted=0.02)
    times = {"local": 0.2, "middle": 0.3, "hosted": 0.9}
    known = {
        name: replace(one, forecast=Forecast(times[name], 1.0, 1.0, 0.0, known=True)) for name, one in health().items()
    }
    asked = features(stream=True)
    found = [
        decided_by(EASY_RULES, SURE, asked, known, 10.0, costs=costs, ttft_s=limit).tiers[0]
        for limit in (0.1, 0.5, 2.0)
    ]
    assert found == ["local", "local", "hosted"]


def test_reading_cold_counts_for_the_time_to_the_first_token() -> None:
    """A weaker tier that would have to read too long to be in time leaves the turn to one that is warm."""
    forecast = Forecast(0.2, 0.4, 1.0, 0.0, known=True)
    quick = {name: replace(one, forecast=forecast) for name, one in health().items()}
    costs = {"local": TierCost(9000, 0.0, 0.9), "middle": TierCost(9000, 0.0, 0.2), "hosted": TierCost(10, 0.1)}
    asked = features(stream=True)
    found = decided_by(EASY_RULES, SURE, asked, quick, 10.0, costs=costs, ttft_s=0.5)
    assert found.tiers[0] == "middle" and "1100 ms expected to a first token" in found.stand_in
    assert decided_by(EASY_RULES, SURE, asked, quick, 10.0, costs=costs, ttft_s=2.0).tiers[0] == "local"
    assert decided_by(EASY_RULES, SURE, asked, quick, 10.0, ttft_s=0.5).tiers[0] == "local"
