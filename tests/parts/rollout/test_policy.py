"""The `rollout` block of a policy: read and checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.parts.rollout.policy import RolloutSections
from policies.errors import ConfigError
from policies.loader import PolicySource, read_policy
from policies.model import DeployedTier
from tests.policies.conftest import CHAT, Write, write

__all__ = ["write"]

WHOLE = """\
surface: support-chat
match:   {models: [support, gpt-4o-mini], header: {x-tierline-surface: support-chat}}
slo:     {ttft: {p95: 400ms, p99: 900ms}, total: {p99: 6s}, deadline: 8s, on_miss: serve_best}
tiers:   [local, hosted]
route:
  classifier: default
  start:   {local: "p_adequate >= 0.7 and tokens_in < 3000", hosted: otherwise}
escalate:
  when:    {confidence_below: 0.62, invalid: [json_schema, tool_args], finish: [length], repetition: true}
  no_signal: escalate
  stream:  {hold_tokens: 24, hold_max: 250ms}
  hedge:   {after: p95, max_extra_spend: 3%}
  max_attempts: 3
cache:
  exact:    {ttl: 24h}
  semantic: {ttl: 6h, max_error: 1%, guards: [negation, numbers, entities, dates]}
  never:    [tools, "temperature > 0.3"]
  coalesce: true
output:  {max_tokens: 512}
rollout: {steps: [1%, 5%, 25%], sticky: conversation, guard: {goodput: -1%, quality: -2%, ttft_p95: +50ms}}
"""
DESIGN = Path(__file__).resolve().parents[3] / "shared" / "design.md"


def _load(folder: Path, text: str) -> None:
    (folder / "support-chat.yaml").write_text(text)
    found = PolicySource(folder, (DeployedTier("local"), DeployedTier("hosted")), "support-chat").load()
    assert found.resolve("support") is found.resolve("any", "support-chat") is found.default
    assert found.default.of(RolloutSections).rollout is not None
    assert found.default.of(RolloutSections).rollout.steps == (0.01, 0.05, 0.25)
    guard = found.default.of(RolloutSections).rollout.guard
    assert (guard.goodput, guard.quality, guard.ttft_p95, guard.cost) == (-0.01, -0.02, 0.05, None)


def test_a_policy_with_everything_loads(tmp_path: Path) -> None:
    """Each block that the design names, in its notation."""
    _load(tmp_path, WHOLE)


@pytest.mark.skipif(not DESIGN.is_file(), reason="the design document is not beside this checkout")
def test_the_design_s_own_example_loads(tmp_path: Path) -> None:
    """As it stands in the document."""
    _load(tmp_path, DESIGN.read_text().partition("```yaml\nsurface:")[2].partition("```")[0].join(("surface:", "")))


def test_it_is_no_part_of_the_version(write: Write) -> None:
    """It rules how a change comes in, and not what the policy answers by."""
    without, with_it = read_policy(write("a", CHAT))[0], read_policy(write("b", CHAT + "rollout: {steps: [5%]}\n"))[0]
    assert without.version == with_it.version


@pytest.mark.parametrize(
    ("block", "key", "says"),
    [
        ("{}", "rollout.steps", "required"),
        ("{steps: []}", "rollout.steps", "at least 1"),
        ("{steps: [5%, 1%]}", "rollout.steps", "larger share than the one before"),
        ("{steps: [100%]}", "rollout.steps", "below 100%"),
        ("{steps: [5%], sticky: cookie}", "rollout.sticky", "'conversation', 'key' or 'tenant'"),
        ("{steps: [5%], guard: {goodput: 1%}}", "rollout.guard.goodput", "a minus, such as -1%"),
        ("{steps: [5%], guard: {quality: --1%}}", "rollout.guard.quality", "not a share"),
        ("{steps: [5%], guard: {ttft_p95: 50ms}}", "rollout.guard.ttft_p95", "a plus, such as +50ms"),
        ("{steps: [5%], guard: {cost: -10%}}", "rollout.guard.cost", "a plus, such as +10%"),
        ("{steps: [5%], floor: {quality: 90%}}", "rollout.floor.quality", "unknown key"),
        ("{steps: [5%], sure: 100%}", "rollout.sure", "less than 1"),
        ("{steps: [5%], step_min: 2d}", "rollout", "step_max must be longer"),
        ("{steps: [5%], undecided: wait}", "rollout.undecided", "'pause', 'promote' or 'rollback'"),
    ],
)
def test_a_mistake_in_it_is_found(write: Write, block: str, key: str, says: str) -> None:
    """By its key, with what to write instead."""
    with pytest.raises(ConfigError) as caught:
        read_policy(write("chat", f"{CHAT}rollout: {block}\n"))
    assert any(problem.key == key and says in problem.message for problem in caught.value.problems), caught.value
