"""From policy files to a policy set: versions, names, and everything that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.parts.lint.rules import lint
from gateway.parts.rollout.policy import RolloutSections
from policies.errors import ConfigError, InvalidContent, UnreadableFile
from policies.loader import SHIPPED, PolicySource, policy_files, read_policy
from policies.model import DeployedTier, Policy
from tests.policies.conftest import CHAT, Write

TIERS = (DeployedTier("local"), DeployedTier("hosted"))


def problems_of(directory: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        PolicySource(directory, TIERS).load()
    return [f"{problem.line}: {problem.key}: {problem.message}" for problem in caught.value.problems]


def test_what_a_file_says_is_what_the_policy_holds(write: Write) -> None:
    """Durations are seconds, rules are parsed, what is not written has its default."""
    policy = read_policy(write())[0]
    assert (policy.slo.ttft.p95, policy.slo.deadline) == (0.4, 30.0)
    assert policy.cache.exact is not None
    assert policy.cache.exact.ttl == 86400
    assert list(policy.route.start) == ["local", "hosted"]
    assert policy.route.start["local"].holds({"p_adequate": 0.8, "tokens_in": 5})
    assert policy.escalate.max_attempts == 3
    assert policy.label == f"chat@{policy.version[:7]}"


@pytest.mark.parametrize(
    "same",
    [
        "# a comment\n" + CHAT,
        "".join(
            reversed(
                CHAT.replace("route:\n  start", "route: {start").replace("otherwise}", "otherwise}}").splitlines(True)
            )
        ),
        CHAT + "description: words for people\n",
        CHAT + "output: {}\n",
        CHAT.replace("400ms", "0.4s").replace("24h", "1d").replace("0.62", "62%"),
        CHAT.replace("{p95: 400ms, p99: 900ms}", "{p99: 900ms, p95: 400ms}"),
    ],
    ids=["comment", "key order", "description", "a default written out", "other units", "nested key order"],
)
def test_equal_rules_have_equal_versions(write: Write, same: str) -> None:
    """Comments, layout, key order and defaults written out do not make another version."""
    assert read_policy(write("same", same))[0].version == read_policy(write())[0].version


@pytest.mark.parametrize(
    "change",
    [
        ("0.62", "0.63"),
        ("24h", "23h"),
        ("[tools, temperature > 0.3]", "[tools]"),
        ("{local: p_adequate >= 0.7 and tokens_in < 3000, hosted: otherwise}",
         "{hosted: otherwise, local: p_adequate >= 0.7 and tokens_in < 3000}"),
    ],
)  # fmt: skip
def test_other_rules_have_another_version(write: Write, change: tuple[str, str]) -> None:
    """Any change of a rule, the order of `route.start` among them, is another version."""
    assert read_policy(write("other", CHAT, change))[0].version != read_policy(write())[0].version


SMALL, LARGE = DeployedTier("local", ("small",)), DeployedTier("hosted", ("large",))
NO_KEY = DeployedTier("hosted", unconfigured="HOSTED_KEY is not set")


def deployed(file: Path, *tiers: DeployedTier) -> Policy:
    return PolicySource(file.parent, tiers or (SMALL, LARGE)).load().default


def test_the_ladder_is_made_of_the_tiers_that_are_configured(write: Write) -> None:
    """Where the deployment lacks a key, the policy knows the rest as its ladder, and which variable is missing."""
    whole, alone = deployed(write()), deployed(write(), SMALL, NO_KEY)
    assert (whole.ladder, whole.models, whole.unconfigured) == (("local", "hosted"), ("small", "large"), {})
    assert (alone.ladder, alone.models) == (("local",), ("small",))
    assert alone.unconfigured["hosted"].why_not == "hosted is not configured: HOSTED_KEY is not set"
    assert (alone.tiers, alone.version) == (whole.tiers, whole.version)


@pytest.mark.parametrize(
    "change",
    [
        ("p95: 400ms", "p95: 300ms"),
        ("deadline: 30s", "deadline: 20s"),
        ("0.62", "0.75"),
        ("p_adequate >= 0.7", "p_adequate >= 0.8"),
        ("surface: chat", "surface: chat\nholdout: 5%\nload: {max_wait: 4s}"),
        ("[gpt-4o-mini]", "[gpt-4o]"),
        ("surface: chat", "surface: chat\nprompt_cache: off"),
    ],
    ids=str,
)
def test_edited_thresholds_keep_the_stored_answers(write: Write, change: tuple[str, str]) -> None:
    """Objectives, load, hold-out and prompt caches say who answers, when and for how much, not what is answered."""
    before, after = deployed(write()), deployed(write("chat", CHAT, change))
    assert after.version != before.version
    assert after.answers_version == before.answers_version


@pytest.mark.parametrize(
    "change",
    [
        ("ttl: 24h", "ttl: 23h"),
        ("[tools, temperature > 0.3]", "[tools]"),
        ("cache: {", "cache: {semantic: {ttl: 6h}, "),
        ("surface: chat", "surface: chat\noutput: {max_tokens: 64}"),
        ("surface: chat", "surface: chat\noutput: {stop: [END]}"),
        ("tiers: [local, hosted]\nroute:\n  start: {local: p_adequate >= 0.7 and tokens_in < 3000, hosted: otherwise}",
         "tiers: [hosted]\nroute:\n  start: {hosted: otherwise}"),
    ],
    ids=str,
)  # fmt: skip
def test_other_rules_for_an_answer_leave_the_stored_ones(write: Write, change: tuple[str, str]) -> None:
    """Another tier, another limit for the output or another rule for the cache: what is stored belongs to the old."""
    before, after = deployed(write()), deployed(write("chat", CHAT, change))
    assert after.answers_version != before.answers_version


def test_other_models_leave_the_stored_answers(write: Write) -> None:
    """Each ladder, by its tiers and all their models, has answers of its own; so does nobody know of a deployment."""
    ladders = [
        (SMALL, LARGE),
        (SMALL, NO_KEY),
        (DeployedTier("local", ("large",)), DeployedTier("hosted", ("small",))),
        (SMALL, DeployedTier("hosted", ("larger",))),
        (SMALL, DeployedTier("hosted", ("large", "larger"))),
        (DeployedTier("local", unconfigured="X is not set"), LARGE),
    ]
    versions = {deployed(write(), *tiers).answers_version for tiers in ladders}
    assert len(versions | {read_policy(write())[0].answers_version}) == len(ladders) + 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("deadline: 30s", "dedline: 30s"), "3: slo.dedline: unknown key (did you mean 'deadline'?)"),
        (("deadline: 30s", "deadline: 30"), "3: slo.deadline: 30 is not a duration"),
        (("400ms", "400"), "3: slo.ttft.p95: 400 is not a duration"),
        (("slo: {ttft: {p95: 400ms, p99: 900ms}, deadline: 30s}", "slo: {}"), "3: slo.deadline: required, but missing"),
        (("surface: chat", "surface: auto"), "1: surface: 'auto' has a meaning of its own"),
        (("surface: chat", "surface: Chat!"), "1: surface: string should match"),
        (("surface: chat", "surface: chat\nversion: abcdef0"), "2: version: set by Tierline"),
        (("[gpt-4o-mini]", "[tier:local]"), "2: match.models[0]: 'tier:local' cannot be an alias"),
        (("{models: [gpt-4o-mini]}", "{header: {x-app: a}}"), "2: match.header.x-app: only the header x-tierline-"),
        (("[local, hosted]", "[local, local]"), "4: tiers[1]: tier 'local' is named twice"),
        (("[local, hosted]", "[local, hostd]"), "6: route.start.hosted: tier 'hosted' is not among"),
        (("[local, hosted]", "[local, hosted, huge]"), "4: tiers[2]: the deployment has no tier 'huge'"),
        (("hosted: otherwise", "hosted: stream"), "6: route.start: one tier must say 'otherwise'"),
        (("p_adequate", "p_adquate"), "6: route.start.local: 'p_adquate >= 0.7 and tokens_in < 3000' asks for "
                                      "'p_adquate' (did you mean 'p_adequate'?)"),
        (("p_adequate", "temperature"), "6: route.start.local: 'temperature >="),
        (("p_adequate >= 0.7", "easiest 40%"), "6: route.start.local: 'easiest 40% and tokens_in < 3000' is not a "
                                               "rule: no value is called 'easiest'; write 'easiest 40% of its kind'"),
        (("p_adequate >= 0.7", "kind == chatt"), "6: route.start.local: 'kind == chatt' can never hold (did you mean"),
        (("[tools,", "[easiest 40% of its kind,"), "8: cache.never[0]: 'easiest 40% of its kind' asks for 'quantile'"),
        (("otherwise}", "otherwise}\n  traffic: {classifier: a0a0a0a, deciles: {chat: [0.1, 0.2]}}"),
         "7: route.traffic.deciles.chat: write nine numbers"),
        (("otherwise}", "otherwise}\n  traffic: {classifier: a0a0a0a, deciles: {chat: [1, 1, 1, 1, 1, 1, 1, 1, 0]}}"),
         "7: route.traffic.deciles.chat: [1.0, 1.0, 1.0"),
        (("otherwise}", "otherwise}\n  traffic: {classifier: a0a0a0a, deciles: {chess: []}}"),
         "7: route.traffic.deciles.chess: input should be 'choices', 'maths'"),
        (("0.62", ".nan"), "7: escalate.when.confidence_below: input should be "),
        (("0.62", "1.5"), "7: escalate.when.confidence_below: input should be less than or equal to 1"),
        (("0.62", "true"), "7: escalate.when.confidence_below: true is not a number"),
        (("0.62", "0.62, uncalibrated_below: 2"), "7: escalate.when.uncalibrated_below: input should be less than"),
        (("[json]}", "[json]}, agreement: {samples: 9}"), "7: escalate.agreement.samples: input should be less than"),
        (("[json]}", "[json]}, agreement: {sample: 1}"), "7: escalate.agreement.sample: unknown key (did you mean"),
        (("[json]", "[jsn]"), "7: escalate.when.invalid[0]: input should be 'json', 'json_schema', 'tool_args' or "),
        (("24h", "24 hours"), "8: cache.exact.ttl: '24 hours' is not a duration"),
        (("[tools,", "[tols,"), "8: cache.never[0]: 'tols' asks for 'tols' (did you mean 'tools'?)"),
        (("{local: p_adequate >= 0.7 and tokens_in < 3000, hosted: otherwise}",
          "{hosted: otherwise}"), "4: tiers[0]: tier 'local' can never be reached"),
        (("tiers: [local, hosted]", "tiers: no"), "4: tiers: write a list, such as [a, b]"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_line_and_key(write: Write, change: tuple[str, str], problem: str) -> None:
    """Each mistake is refused at its own line and key, with a hint where one can be given."""
    file = write("chat", CHAT, change)
    found = problems_of(file.parent)
    assert any(text.startswith(problem) for text in found), found


def test_all_problems_of_all_files_are_told_at_once(write: Write) -> None:
    """One start tells everything that is wrong."""
    write("chat", CHAT, ("400ms", "fast"), ("0.62", "2"), ("[json]", "[xml]"))
    file = write("other", "surface: [")
    found = problems_of(file.parent)
    assert len(found) == 4


def test_a_flag_may_say_yes_and_a_word_may_be_no(write: Write) -> None:
    """`no` is false where a flag is meant, and the word `no` where a name is."""
    file = write("chat", CHAT, ("invalid: [json]", "repetition: no"), ("[gpt-4o-mini]", "[no]"))
    policy = read_policy(file)[0]
    assert policy.escalate.when.repetition is False
    assert policy.match.models == ("no",)


def test_a_request_finds_its_policy_by_header_or_model(write: Write) -> None:
    """The header goes first; without it, a surface's name, an alias or auto; nothing is guessed."""
    write("batch", CHAT, ("surface: chat", "surface: batch"),
          ("{models: [gpt-4o-mini]}", "{models: [offline], header: {X-Tierline-Surface: nightly}}"))  # fmt: skip
    policies = PolicySource(write().parent, TIERS).load()
    asked = [
        (("chat", None), "chat"),
        (("gpt-4o-mini", None), "chat"),
        (("offline", None), "batch"),
        (("auto", None), "chat"),
        (("anything", "batch"), "batch"),
        (("anything", "nightly"), "batch"),
        (("anything", "auto"), "chat"),
        (("nightly", None), None),
        (("chat", "nope"), None),
        (("nope", None), None),
    ]
    for (model, surface), expected in asked:
        found = policies.resolve(model, surface)
        assert (found.surface if found else None) == expected, (model, surface)
    assert policies.names == ("batch", "chat")
    assert policies.default.surface == "chat"


def test_a_name_belongs_to_one_surface(write: Write) -> None:
    """A surface in two files, an alias of two surfaces and an alias that is a surface's name are refused."""
    write("a", CHAT, ("surface: chat", "surface: a"))
    write("b", CHAT, ("surface: chat", "surface: b"), ("[gpt-4o-mini]", "[gpt-4o-mini, chat]"))
    write("copy")
    found = problems_of(write().parent)
    assert (
        "1: surface: surface 'chat' is already in chat.yaml; choose another name, or delete one of the files" in found
    )
    assert "2: match.models[0]: 'gpt-4o-mini' already stands for the surface 'a'" in found
    assert "2: match.models[1]: 'chat' already stands for the surface 'chat'" in found


def test_the_default_surface_must_be_there(write: Write) -> None:
    """A deployment whose default surface has no policy does not start."""
    with pytest.raises(InvalidContent, match=r"no policy for the default surface 'caht' \(did you mean 'chat'\?\)"):
        PolicySource(write().parent, TIERS, "caht").load()


def test_a_folder_without_policies_is_refused(tmp_path: Path) -> None:
    """No folder, and a folder with nothing in it, are told apart."""
    with pytest.raises(UnreadableFile, match="no policy files"):
        PolicySource(tmp_path, TIERS).load()
    with pytest.raises(UnreadableFile, match="no such folder"):
        PolicySource(tmp_path / "nope", TIERS).load()


def test_hidden_files_are_no_policies(write: Write) -> None:
    """What editors keep beside a file while it is written is not read."""
    file = write()
    (file.parent / ".chat.yaml.swp").write_text("garbage: [")
    (file.parent / ".#chat.yaml").write_text("garbage: [")
    assert PolicySource(file.parent, TIERS).load().names == ("chat",)


def test_a_snapshot_changes_with_every_write(write: Write) -> None:
    """A change is seen without reading the files, and no change is no difference."""
    file = write()
    source = PolicySource(file.parent, TIERS)
    before = source.snapshot()
    assert source.snapshot() == before
    write("chat", CHAT, ("0.62", "0.7"))
    assert source.snapshot() != before


def test_the_shipped_policies_are_right() -> None:
    """They load, nothing about them is doubtful, and those have a semantic cache whose answers may be worded anew."""
    policies = PolicySource(SHIPPED, TIERS).load()
    assert policies.names == (
        "agent", "autocomplete", "batch", "chat", "drafting", "extraction", "research", "search", "support", "voice",
    )  # fmt: skip
    assert [finding for policy in policies.by_surface.values() for finding in lint(policy)] == []
    semantic = [name for name, policy in policies.by_surface.items() if policy.cache.semantic is not None]
    assert semantic == ["batch", "chat", "support", "voice"]
    assert policies.resolve("auto") is policies.by_surface["chat"]


def test_every_line_of_a_shipped_policy_says_why() -> None:
    """Each value has a comment behind it or directly above it."""
    for file in policy_files(SHIPPED):
        above = ""
        for number, line in enumerate(map(str.strip, file.read_text().splitlines()), 1):
            is_value = line and not line.startswith(("#", "description:")) and not line.endswith(":")
            assert not is_value or "# " in line or above.startswith("#"), f"{file.name}:{number}: {line}"
            above = line


def test_a_deployment_may_lack_an_optional_tier(write: Write) -> None:
    """Then the policy is as if it had never named it, and keeps its version; where the deployment has it, it counts."""
    three = ("tiers: [local, hosted]", "tiers: [local, hosted, large]\noptional_tiers: [large]")
    rule = ("p_adequate >= 0.7 and tokens_in < 3000", "p_adequate >= 0.7, large: tokens_in > 9000")
    fields = ("cache: {", "tier_fields: {large: {set: {reasoning_effort: low}}}\ncache: {")
    file = write("chat", CHAT, three, rule, fields)
    without = PolicySource(file.parent, TIERS).load().default
    assert (without.tiers, without.ladder) == (("local", "hosted"), ("local", "hosted"))
    assert (list(without.route.start), without.tier_fields) == (["local", "hosted"], {})
    with_it = PolicySource(file.parent, (*TIERS, DeployedTier("large"))).load().default
    assert with_it.ladder == ("local", "hosted", "large")
    assert list(with_it.route.start) == ["local", "large", "hosted"]
    assert with_it.version == without.version
    write("chat", file.read_text(), ("optional_tiers: [large]", "optional_tiers: []"))
    assert "the deployment has no tier 'large'" in problems_of(file.parent)[0]


def test_a_cache_is_no_wider_than_every_tenant_has_a_team(write: Write) -> None:
    """Answers are shared within teams only where each tenant has one; the tenants that have none are named."""
    file = write("chat", CHAT.replace("cache: {", "cache: {scope: team, "))
    shared = PolicySource(file.parent, TIERS, teamless=()).load()
    assert shared.default.cache.scope == "team"
    with pytest.raises(InvalidContent, match="acme, zeta have no team") as caught:
        PolicySource(file.parent, TIERS, teamless=("acme", "zeta")).load()
    assert caught.value.problems[0].key == "cache.scope"
    with pytest.raises(InvalidContent, match="tenant 'acme' has no team"):
        PolicySource(file.parent, TIERS, teamless=("acme",)).load()


def test_a_cross_encoder_is_asked_only_where_the_deployment_has_one(write: Write) -> None:
    """A policy with rules for it does not load without, nor one without a threshold for a model that states none."""
    file = write("chat", CHAT.replace("cache: {", "cache: {semantic: {ttl: 6h, cross_encoder: {min_score: 0.9}}, "))
    source = PolicySource(file.parent, TIERS, cross_encoder="unmeasured")
    semantic = source.load().default.cache.semantic
    assert semantic is not None
    assert semantic.cross_encoder.min_score == 0.9
    with pytest.raises(InvalidContent, match="the config says cross_encoder: none") as caught:
        PolicySource(file.parent, TIERS).load()
    assert caught.value.problems[0].key == "cache.semantic.cross_encoder"
    file = write("chat", CHAT.replace("cache: {", "cache: {semantic: {ttl: 6h}, "))
    PolicySource(file.parent, TIERS).load()
    PolicySource(file.parent, TIERS, cross_encoder="measured").load()
    with pytest.raises(InvalidContent, match=r"has no sheet\.json that states its threshold") as caught:
        PolicySource(file.parent, TIERS, cross_encoder="unmeasured").load()
    assert caught.value.problems[0].key == "cache.semantic.cross_encoder"


def test_a_judge_is_a_backend_of_the_deployment(write: Write) -> None:
    """Another name does not load, and the nearest one is suggested."""
    file = write("chat", CHAT.replace("cache: {", "cache: {semantic: {ttl: 6h, audit_judge: {backend: hosted}}, "))
    semantic = PolicySource(file.parent, TIERS, backends={"small": "a", "hosted": "b"}).load().default.cache.semantic
    assert semantic is not None
    assert semantic.audit_judge is not None
    with pytest.raises(InvalidContent, match="no backend 'hosted' \\(did you mean 'hosted-1'") as caught:
        PolicySource(file.parent, TIERS, backends={"small": "a", "hosted-1": "b"}).load()
    assert caught.value.problems[0].key == "cache.semantic.audit_judge.backend"


@pytest.mark.parametrize("tags", ["['a b']", "['']", f"['{'x' * 65}']", f"[{', '.join(f't{i}' for i in range(17))}]"])
def test_tags_are_bounded(write: Write, tags: str) -> None:
    """A policy names up to 16 sources, each by up to 64 plain characters."""
    good = read_policy(write("good", CHAT.replace("cache: {", "cache: {tags: ['doc:42'], ")))[0]
    assert good.cache.tags == ("doc:42",)
    with pytest.raises(ConfigError):
        read_policy(write("bad", CHAT.replace("cache: {", f"cache: {{tags: {tags}, ")))


@pytest.mark.parametrize(
    ("more", "share"),
    [
        ("", 0.0), ("learn: {judge: wise}", 0.01), ("learn: {judge: wise}\nholdout: 0%", 0.0), ("holdout: 2%", 0.02),
        ("learn: {judge: wise}\nholdout: 3%", 0.03),
    ],
)  # fmt: skip
def test_none_are_held_out_where_nothing_is_judged(write: Write, more: str, share: float) -> None:
    """They would cost what the strongest tier does, and be compared with nothing; what the policy says comes first."""
    assert read_policy(write("chat", f"{CHAT}\n{more}\n"))[0].held_out == share


def test_a_judge_of_answers_gives_none_itself(write: Write) -> None:
    """`learn` names a backend of the deployment whose model answers in no tier of the surface; it is no new version."""
    plain = read_policy(write("chat", CHAT), TIERS)[0]
    file = write("chat", f"{CHAT}\nlearn: {{judge: wise, share: 5%, max_usd_per_day: 0.5}}\n")
    tiers = (DeployedTier("local", ("small",)), DeployedTier("hosted", ("large",)), DeployedTier("judges", ("wise-1",)))
    backends = {"local": "small", "hosted": "large", "hosted-2": "large", "wise": "wise-1"}
    policy = PolicySource(file.parent, tiers, backends=backends).load().default
    learn = policy.of(RolloutSections).learn
    assert learn is not None and learn.share == 0.05
    assert policy.version == plain.version
    with pytest.raises(InvalidContent, match="no backend 'wise'") as caught:
        PolicySource(file.parent, tiers, backends={"local": "small"}).load()
    assert caught.value.problems[0].key == "learn.judge"
    with pytest.raises(InvalidContent, match="hosted-2 is large, which answers here as 'hosted'"):
        write("chat", f"{CHAT}\nlearn: {{judge: hosted-2}}\n")
        PolicySource(file.parent, tiers, backends=backends).load()


def test_a_wildcard_stands_for_every_name_that_it_matches(write: Write) -> None:
    """The most specific one counts, a whole name before all of them, and what none matches is no name."""
    write("a", CHAT, ("chat", "a"), ("[gpt-4o-mini]", "[gpt-*, gpt-5-codex, o3*]"))
    file = write("b", CHAT, ("chat", "b"), ("[gpt-4o-mini]", "['*codex*', gpt-4o]"))
    policies = PolicySource(file.parent, TIERS, default_surface="a").load()
    expected = {"gpt-5.4": "a", "gpt-5-codex-mini": "b", "gpt-5-codex": "a", "gpt-4o": "b", "o3": "a", "claude-3": ""}
    for _ in range(2):  # the second time from what is remembered
        found = {name: policies.resolve(name) for name in expected}
        assert {name: policy.surface if policy else "" for name, policy in found.items()} == expected
    assert policies.resolve("gpt-5.4", "b") is policies.by_surface["b"]
    for number in range(3000):
        policies.resolve(f"other-{number}")
    assert len(policies._matched) <= 1024


def test_wildcards_of_two_surfaces_are_not_equally_specific(write: Write) -> None:
    """Where both could match one name, nobody could say which counts."""
    write("a", CHAT, ("chat", "a"), ("[gpt-4o-mini]", "[claude-*, 'gpt-*']"))
    file = write("b", CHAT, ("chat", "b"), ("[gpt-4o-mini]", "['*-haiku-*', 'gpt*x', 'claude-*']"))
    found = [line for line in problems_of(file.parent) if "match.models" in line]
    assert [line.partition(": ")[2].partition(" can match")[0] for line in found] == [
        "match.models[0]: '*-haiku-*' and 'claude-*' of the surface 'a'",
        "match.models[1]: 'gpt*x' and 'gpt-*' of the surface 'a'",
        "match.models[2]: 'claude-*' already stands for the surface 'a'",
    ]
