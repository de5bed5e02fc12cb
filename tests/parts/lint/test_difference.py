"""What two policies mean, compared."""

from __future__ import annotations

import pytest

from gateway.parts.lint.difference import EFFECTS, Difference, difference
from policies.loader import read_policy
from policies.sections import rules_model
from policies.validation import Section
from tests.policies.conftest import CHAT, Write, write

__all__ = ["write"]

START = "start: {local: p_adequate >= 0.7 and tokens_in < 3000, hosted: otherwise}"


def compared(write: Write, *changes: tuple[str, str], text: str = CHAT) -> Difference:
    before, _ = read_policy(write("before", text))
    after, document = read_policy(write("after", text, *changes))
    return difference(before, after, lambda path: document.problem(path, "").line)


def test_a_policy_does_not_differ_from_itself(write: Write) -> None:
    """Nor does its dropping of stored answers."""
    assert compared(write) == Difference((), drops_answers=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("p95: 400ms", "p95: 0.4s"),
        ("ttl: 24h", "ttl: 1d"),
        ("confidence_below: 0.62", "confidence_below: 62%"),
        ("tiers: [local, hosted]", "tiers: [local, hosted]\noutput: {}\nload: {max_wait: 2000ms}"),
        ("slo: {ttft: {p95: 400ms, p99: 900ms}, deadline: 30s}",
         "slo: {deadline: 30s, ttft: {p99: 900ms, p95: 400ms}}"),
        ("surface: chat", "# a comment\nsurface:    chat"),
        ("confidence_below: 0.62", "confidence_below: 0.62, uncalibrated_below: 0.8"),
        ("escalate: {when: {confidence_below: 0.62, invalid: [json]}}",
         "escalate: {when: {invalid: [json], confidence_below: 0.62}, stream: {hold_max: 0.25s}}"),
    ],
)  # fmt: skip
def test_units_defaults_and_the_order_of_keys_make_no_difference(write: Write, old: str, new: str) -> None:
    """Such edits are not even mentioned."""
    assert compared(write, (old, new)).changes == ()


@pytest.mark.parametrize(
    ("old", "new", "path", "before", "after", "line"),
    [
        ("p99: 900ms", "p99: 1.2s", "slo.ttft.p99", "900ms", "1.2s", 3),
        ("0.62", "0.75", "escalate.when.confidence_below", "0.62", "0.75", 7),
        ("[json]", "[json, tool_args]", "escalate.when.invalid", "[json]", "[json, tool_args]", 7),
        ("ttl: 24h", "ttl: 90m", "cache.exact.ttl", "24h", "90m", 8),
        ("tools, temp", "temp", "cache.never", "tools", "none", 8),
        ("[local, hosted]", "[local, hosted]\nholdout: 0.5%", "holdout", "none", "0.5%", 5),
        ("0.62,", "0.62, uncalibrated_below: 0.9,", "escalate.when.uncalibrated_below", "0.8", "0.9", 7),
        ("[json]}", "[json]}, hedge: {}", "escalate.hedge", "none", "{after: p95, max_extra_spend: 3%}", 7),
        ("[json]}", "[json]}, hedge: {after: 300ms}", "escalate.hedge", "none", "{after: 300ms}", 7),
        ("tokens_in < 3000", "tokens_in < 2000", "route.start.local",
         "p_adequate >= 0.7 and tokens_in < 3000", "p_adequate >= 0.7 and tokens_in < 2000", 6),
        ("[gpt-4o-mini]", "[gpt-4o-mini, x]", "match.models", "[gpt-4o-mini]", "[gpt-4o-mini, x]", 2),
    ],
)  # fmt: skip
def test_a_changed_value_is_shown_as_people_write_it(
    write: Write, old: str, new: str, path: str, before: str, after: str, line: int
) -> None:
    """Each with its line in the new file and what it affects."""
    (change,) = compared(write, (old, new)).in_force
    assert (change.path, change.before, change.after, change.line) == (path, before, after, line)
    assert change.effect


def test_a_default_that_follows_from_another_key_is_a_difference_too(write: Write) -> None:
    """Without `confidence_below` nothing is compared, and so no uncalibrated score either."""
    found = {change.path: change for change in compared(write, ("confidence_below: 0.62, ", "")).in_force}
    assert set(found) == {"escalate.when.confidence_below", "escalate.when.uncalibrated_below"}
    assert found["escalate.when.uncalibrated_below"].after == "0"


@pytest.mark.parametrize(
    "new",
    [
        "start: {local: tokens_in < 3000 and p_adequate >= 0.7, hosted: otherwise}",
        "start: {local: not (tokens_in >= 3000) and 0.7 <= p_adequate, hosted: otherwise}",
        "start: {local: p_adequate >= 0.7 and in_domain and tokens_in < 3000, hosted: otherwise}",
        "start: {local: p_adequate >= 0.7 and tokens_in <= 2999, hosted: otherwise}",
    ],
)
def test_rules_are_compared_by_the_requests_they_hold_for(write: Write, new: str) -> None:
    """A rule in other words is said to mean the same; so is another list of rules with the same starts."""
    found = compared(write, (START, new))
    assert found.in_force == ()
    assert {change.weight for change in found.changes} == {"rewritten"}
    assert not found.drops_answers


def test_lists_of_rules_are_compared_by_where_requests_start(write: Write) -> None:
    """A later rule may leave out what an earlier one has taken."""
    before = CHAT.replace("[local, hosted]", "[small, local, hosted]").replace(
        START, "start: {small: tokens_in < 9, local: tokens_in >= 9 and stream, hosted: otherwise}"
    )
    found = compared(write, ("tokens_in >= 9 and stream", "stream"), text=before)
    assert [(change.path, change.weight) for change in found.changes] == [("route.start.local", "rewritten")]


def test_the_order_of_start_rules_counts_where_both_may_hold(write: Write) -> None:
    """Rules of which at most one holds may change places."""
    three = CHAT.replace("[local, hosted]", "[small, local, hosted]")
    overlapping = three.replace(START, "start: {small: stream, local: tokens_in < 9, hosted: otherwise}")
    (change,) = compared(write, ("small: stream, local: tokens_in < 9", "local: tokens_in < 9, small: stream"),
                         text=overlapping).changes  # fmt: skip
    assert (change.path, change.weight, change.after) == ("route.start", "changes", "local then small then hosted")
    apart = three.replace(START, "start: {small: tokens_in > 9, local: tokens_in < 9, hosted: otherwise}")
    swapped = "small: tokens_in > 9, local: tokens_in < 9", "local: tokens_in < 9, small: tokens_in > 9"
    (change,) = compared(write, swapped, text=apart).changes
    assert change.weight == "rewritten"


def test_what_rules_nothing_in_force_is_said_to(write: Write) -> None:
    """A description and the way in which later changes come in."""
    found = compared(write, ("surface: chat", "surface: chat\ndescription: x\nrollout: {steps: [1%, 5%]}"))
    assert [(change.path, change.weight) for change in found.changes] == [
        ("description", "aside"),
        ("rollout", "aside"),
    ]
    assert found.in_force == ()


def test_an_edit_that_starts_an_empty_cache_says_so(write: Write) -> None:
    """Even one that means the same: stored answers belong to the rules as they are written."""
    found = compared(write, ("[tools, temperature > 0.3]", "[temperature > 0.3, tools]"))
    assert found.in_force == ()
    assert found.drops_answers
    found = compared(write, ("temperature > 0.3", "0.3 < temperature"))
    assert [change.weight for change in found.changes] == ["rewritten"]
    assert "not served any more" in found.changes[0].effect
    assert not compared(write, ("0.62", "0.7")).drops_answers


def test_rules_of_never_may_be_joined(write: Write) -> None:
    """Any of them may hold, so `a` and `b` on their own are the rule `a or b`."""
    found = compared(write, ("[tools, temperature > 0.3]", "[tools or temperature > 0.3]"))
    assert found.in_force == ()
    assert {change.weight for change in found.changes} == {"rewritten"}
    found = compared(write, ("[tools, temperature > 0.3]", "[tools or temperature > 0.4]"))
    assert found.in_force


def test_every_key_has_a_sentence_on_what_it_affects() -> None:
    """A key that is added to the model is missed here."""

    def keys(section: type[Section], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        return [(*path, name) for name in section.model_fields]

    covered = {prefix[0] for prefix in EFFECTS if len(prefix) == 1}
    deep = {prefix[:2] for prefix in EFFECTS if len(prefix) > 1}
    for (name,) in keys(rules_model()):
        below = rules_model().model_fields[name].annotation
        if name not in covered:
            assert isinstance(below, type)
            assert issubclass(below, Section)
            assert set(keys(below, (name,))) <= deep, name
