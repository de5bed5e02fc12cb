"""Replay: the recorded policy makes its decisions again, another one gets what it would have got served live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gateway.cli.main import main
from gateway.parts.lab.commands._replay_view import interval_text, quality_text
from gateway.parts.lab.replay.cells import policy_on
from gateway.parts.lab.replay.figures import FigureChange
from gateway.parts.lab.replay.gates import Gate, GateError
from gateway.parts.lab.replay.plan_file import BoundTo, PlanError, PolicyPlan, read_plan, why_stale, write_plan
from gateway.parts.lab.replay.recording import NothingRecordedError
from gateway.parts.lab.replay.records import Which
from gateway.parts.lab.replay.run import Replayed, replay
from gateway.parts.lab.replay.starts import start_moves
from gateway.parts.ledger.folder import segments_of
from gateway.parts.ledger.query import connect
from gateway.parts.recorder.decision_record import DecisionBasis, unnamed
from policies.loader import made_policy
from policies.model import Policy
from routing.decide import DecisionInput, TierCost, decide
from tests.bench.replay_truth import truth_of
from tests.support.ledger_files import write_ledger
from tests.support.scripted_world import World, policy

N = 900
OLDEST_S = 1_767_225_620.0
"""Twenty seconds after the first request."""


@pytest.fixture(scope="module")
def world() -> World:
    return World(N, seed=7)


@pytest.fixture(scope="module")
def ledger(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of what `policy()` served, with feedback on every tenth request."""
    folder = tmp_path_factory.mktemp("ledger")
    rows = list(world.live(policy()))
    for call in (call for row in rows if row["stream"] for call in row["calls"]):
        call["finish"] = ""  # a stream's draft is judged by its beginning, which has no finish reason yet
    rated = [
        {
            "entry_ms": row["entry_ms"],
            "entry_seq": row["entry_seq"],
            "ordinal": number + 1,
            "request_id": row["request_id"],
            "tenant": row["tenant"],
            "surface": "chat",
            "score": float(row["tier"] == "hosted"),
            "comment": None,
            "given_at": row["started"],
        }
        for number, row in enumerate(rows[::10])
    ]
    write_ledger(folder, rows, [world.basis(policy())], rated)
    return folder


@pytest.fixture(scope="module")
def replayed_by(ledger: Path) -> Iterator[Callable[..., Replayed]]:
    with connect(ledger, threads=1) as database:
        yield partial(replay, database)


def test_the_recorded_policy_changes_nothing(replayed_by: Callable[..., Replayed]) -> None:
    """Every decision is made again, byte for byte, and no figure moves."""
    result = replayed_by(policy(), verify=None)
    assert result.fidelity.whole
    assert result.fidelity.checked == result.fidelity.decided > 600
    assert result.cells < result.fidelity.decided / 5
    assert (result.changed, result.estimated, result.no_evidence) == (0, 0, 0)
    assert all(change.low == change.high == change.difference == 0 for change in result.figures.values())


def test_a_record_that_another_policy_made_is_told(world: World, tmp_path: Path) -> None:
    """Fidelity is not taken for granted: decisions under the wrong basis are counted and named."""
    rows = list(world.live(policy(easiest=30)))
    wrong = world.basis(policy(easiest=40))
    for row in rows:
        row["basis"] = row["basis"] and wrong.encode()[0]
    write_ledger(tmp_path, rows[:300], [wrong])
    with connect(tmp_path, threads=1) as database:
        fidelity = replay(database, policy(easiest=40), verify=None).fidelity
    assert not fidelity.whole
    assert fidelity.same < fidelity.decided and fidelity.identical < fidelity.checked
    assert fidelity.differing[0].startswith("req_")


def test_an_unknown_price_is_told(world: World, tmp_path: Path) -> None:
    """A recorded cost that nobody knows is no cost of nothing: the report says of how many requests it is."""
    rows = list(world.live(policy()))[:300]
    for row in rows[:7]:
        row["cost_unknown"] = True
    write_ledger(tmp_path, rows, [world.basis(policy())])
    with connect(tmp_path, threads=1) as database:
        notes = replay(database, policy(), verify=None).notes
    assert any(note.startswith("7 requests called a backend of unknown price") for note in notes)


@pytest.mark.parametrize(
    ("changes", "estimated_path"),
    [({"confidence": 0.8}, False), ({"easiest": 25}, False), ({"semantic": False}, True)],
)
def test_another_policy_gets_what_it_would_have_got_live(
    replayed_by: Callable[..., Replayed], world: World, changes: dict[str, Any], estimated_path: bool
) -> None:
    """A short sample of `python -m tests.bench.replay_truth`."""
    candidate = policy(**changes)
    result = replayed_by(candidate, verify=0)
    truth = truth_of(list(world.live(candidate)), 1.5)
    figures = result.figures
    assert figures["hits"].after == pytest.approx(truth["hits"], abs=0.002)
    assert figures["escalated"].after == pytest.approx(truth["escalated"], abs=0.02 if estimated_path else 0.002)
    assert figures["cost"].after == pytest.approx(truth["cost"], rel=0.06)
    assert result.changed > 0 and result.no_evidence == 0
    assert bool(result.estimated_path) == estimated_path
    assert result.examples and result.slices


class WarmWorld(World):
    """A world in which the conversations of later turns are warm at the hosted tier, where going on costs less."""

    def inputs(self, policy: Policy, at: int) -> DecisionInput:
        """See `World`."""
        given = super().inputs(policy, at)
        if given.features.turns < 2:
            return given
        local = TierCost(9000, None if at % 5 == 0 else 0.01 + 0.002 * (at % 20), 0.05 * (at % 3))
        return replace(given, costs={"local": local, "hosted": TierCost(200, 0.03)})


def test_switching_is_weighed_again_and_can_be_left_out(tmp_path: Path) -> None:
    """From the costs in the record every decision is made again; what if nothing were weighed shows the difference."""
    world = WarmWorld(400, seed=3)
    write_ledger(tmp_path, list(world.live(policy())), [world.basis(policy())], [])
    content = {**policy().content, "route": {**policy().content["route"], "weigh_switching": False}}
    ignores = made_policy(content, Path("chat.yaml"), {"ladder": policy().ladder})
    with connect(tmp_path, threads=1) as database:
        again = replay(database, policy(), verify=None)
        assert again.fidelity.whole and again.fidelity.checked == again.fidelity.decided > 200 and not again.changed
        without = replay(database, ignores, verify=0)
        basis = world.basis(policy())
        starts = [(decide(policy(), one).tiers[0], decide(ignores, one).tiers[0]) for one in inputs_in(database, basis)]
        moved = [pair for pair in starts if pair[0] != pair[1]]
        assert moved and set(moved) == {("hosted", "local")}
        assert without.changed + without.no_evidence >= len(moved) > 20


def inputs_in(database: Any, basis: DecisionBasis) -> list[DecisionInput]:
    rows = database.execute("SELECT given FROM requests WHERE given IS NOT NULL").fetchall()
    return [basis.input_of(unnamed(given)) for (given,) in rows]


def test_what_was_never_called_is_not_guessed(replayed_by: Callable[..., Replayed]) -> None:
    """The local tier never saw a harder request, so nothing says what it would make of one."""
    result = replayed_by(policy(easiest=90), verify=0)
    assert result.no_evidence / result.requests > 0.2
    assert any("without evidence" in note for note in result.notes)


def test_before_is_what_the_record_says(world: World, tmp_path: Path) -> None:
    """Requests without evidence are in every figure as recorded, and the interval covers what they may get."""
    rows = list(world.live(policy()))
    write_ledger(tmp_path, rows, [world.basis(policy())], [])
    with connect(tmp_path, threads=1) as database:
        result = replay(database, policy(easiest=90), verify=0)
    assert result.no_evidence / result.requests > 0.2
    escalated, cost = result.figures["escalated"], result.figures["cost"]
    assert escalated.before == pytest.approx(sum(row["path"] == "escalated" for row in rows) / len(rows))
    assert cost.before == pytest.approx(sum(row["cost_usd"] for row in rows) / len(rows) * 1000)
    share = result.no_evidence / result.requests
    assert escalated.high - escalated.low >= share and escalated.low <= escalated.difference <= escalated.high
    assert cost.low <= cost.difference <= cost.high and cost.high - cost.low > 0
    assert escalated.estimated >= result.no_evidence == result.figures["hits"].estimated


def test_exact_is_said_of_figures_of_which_nothing_is_estimated(replayed_by: Callable[..., Replayed]) -> None:
    """Where half of the requests are estimated and all estimates agree, the figure is not exact."""
    unchanged, raised = replayed_by(policy(), verify=0), replayed_by(policy(confidence=0.8), verify=0)
    assert {interval_text(change, "share") for change in unchanged.figures.values()} == {"exact"}
    assert raised.estimated > 0 and interval_text(raised.figures["cost"], "usd") != "exact"
    assert interval_text(FigureChange(0.2, 0.2, 0.0, 0.0, estimated=483), "share") == "+0.00 points to +0.00 points"


def test_batches_give_the_same_as_one(replayed_by: Callable[..., Replayed], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read in parts is the same, however the parts fall."""
    whole = replayed_by(policy(confidence=0.8), verify=0)
    monkeypatch.setattr("gateway.parts.lab.replay.records.BATCH", 400)
    parts = replayed_by(policy(confidence=0.8), verify=0)
    assert parts.figures == whole.figures and parts.fidelity == whole.fidelity


def test_quality_moves_with_the_tier_that_answers(replayed_by: Callable[..., Replayed]) -> None:
    """Clients rated hosted answers 1 and others 0, so more escalation is rated better by as much."""
    result = replayed_by(policy(confidence=0.9), verify=0)
    low, high = result.quality["interval_95"]
    assert low <= result.quality["difference"] <= high
    answered = 1 - result.figures["hits"].before  # hits are taken to change as the answers of tiers do
    assert result.quality["difference"] == pytest.approx(result.figures["escalated"].difference / answered, abs=0.02)


def test_a_judge_speaks_where_nobody_gave_feedback(world: World, tmp_path: Path) -> None:
    """Its labels on both tiers' answers to a fifth of the requests say what escalation is worth, and who says so."""
    rows = list(world.live(policy()))
    labels = [
        {
            **{name: row[name] for name in ("entry_ms", "entry_seq", "request_id", "tenant")},
            "ordinal": number + 1,
            "surface": "chat",
            "judged_at": row["started"],
            "small": {"tier": "local", "served": row["tier"] == "local", "adequate": float(number % 2)},
            "strong": {"tier": "hosted", "served": row["tier"] == "hosted", "adequate": 1.0},
        }
        for number, row in enumerate([row for row in rows if row["basis"] and row["tier"]][::5])
    ]
    write_ledger(tmp_path, rows, [world.basis(policy())], [], labels)
    with connect(tmp_path, threads=1) as database:
        result = replay(database, policy(confidence=0.9), verify=0)
    quality = result.quality
    assert (quality["labels"], quality["judged"], quality["word"]) == (0, len(labels), "judge")
    escalated = result.figures["escalated"].difference
    worth = escalated / 2 / (1 - result.figures["hits"].before)
    assert quality["difference"] == pytest.approx(worth, abs=0.03)
    low, high = quality["interval_95"]
    assert 0 < low < worth < high
    assert "by the judge alone" in quality_text(result)


def test_drafts_that_were_never_rated_have_no_quality(replayed_by: Callable[..., Replayed]) -> None:
    """A lower threshold serves drafts that were rejected: what accepted ones are worth says nothing of them."""
    result = replayed_by(policy(confidence=0.4), verify=0)
    assert result.quality["difference"] is None and result.quality["interval_95"] is None
    assert result.quality["before"] is not None and result.quality["labels"] > 50
    assert 0 < result.quality["unrated"] <= result.changed
    assert "not known: " in quality_text(result) and "fewer than ten were rated" in quality_text(result)
    assert Gate.parse("quality < -5%").fails(result)


@pytest.mark.parametrize("few", [False, True], ids=["any confidence", "three that recur"])
def test_rejected_drafts_have_the_quality_of_drafts_as_doubtful(world: World, tmp_path: Path, few: bool) -> None:
    """A judge called every one of them wrong, and those that were accepted right: serving them costs all they are."""
    rows = list(world.live(policy()))
    for call in (call for row in rows for call in row["calls"] if few and call["confidence"] is not None):
        call["confidence"] = 0.9 if call["confidence"] >= 0.62 else 0.5 if call["confidence"] >= 0.4 else 0.3
    labels = [
        {
            **{name: row[name] for name in ("entry_ms", "entry_seq", "request_id", "tenant")},
            "ordinal": number + 1,
            "surface": "chat",
            "judged_at": row["started"],
            "small": {"tier": "local", "served": row["tier"] == "local", "adequate": float(row["tier"] == "local")},
            "strong": {"tier": "hosted", "served": row["tier"] == "hosted", "adequate": 1.0},
        }
        for number, row in enumerate(row for row in rows if row["basis"] and row["path"] in ("direct", "escalated"))
    ]
    write_ledger(tmp_path, rows, [world.basis(policy())], [], labels)
    with connect(tmp_path, threads=1) as database:
        result = replay(database, policy(confidence=0.4), verify=0)
    served = -result.figures["escalated"].difference / (1 - result.figures["hits"].before)
    low, high = result.quality["interval_95"]
    assert served > 0.02
    assert result.quality["difference"] == pytest.approx(-served, abs=0.01)
    assert low <= -served <= high < 0


def test_nothing_recorded_is_said(ledger: Path) -> None:
    with connect(ledger, threads=1) as database, pytest.raises(NothingRecordedError, match="no decision"):
        replay(database, policy(), since=4e9)


def test_a_finish_that_no_draft_had_rejects_none(replayed_by: Callable[..., Replayed]) -> None:
    """No recorded draft was cut off, so a policy that rejects those changes nothing."""
    content = dict(policy().content)
    escalate = {**content["escalate"], "when": {**content["escalate"]["when"], "finish": ["length"]}}
    result = replayed_by(made_policy({**content, "escalate": escalate}, Path("chat.yaml"), {}))
    assert (result.changed, result.estimated) == (0, 0)


@pytest.mark.parametrize(
    ("verify", "changed"), [(["logprobs", "judge"], "nothing"), (["agreement"], "all"), (["judge", "logprobs"], "?")]
)
def test_who_would_be_asked_how_sure_a_draft_is(
    replayed_by: Callable[..., Replayed], verify: list[str], changed: str
) -> None:
    """What is asked after log-probabilities changes no verdict, without any the policy has no signal, and of a judge
    that would be asked before them nobody knows what it would have said.
    """
    content = dict(policy().content)
    escalate = {**content["escalate"], "verify": verify, "judge": {"backend": "judge"}}
    result = replayed_by(made_policy({**content, "escalate": escalate}, Path("chat.yaml"), {}))
    before, after = (getattr(result.figures["escalated"], name) for name in ("before", "after"))
    if changed == "nothing":
        assert (result.changed, result.no_evidence) == (0, 0)
    elif changed == "all":
        assert result.no_evidence < 10 and after > before + 0.1
    else:
        assert result.no_evidence > 100 and after == pytest.approx(before)


def test_what_another_classifier_would_say_is_not_guessed(replayed_by: Callable[..., Replayed]) -> None:
    """The records hold what their classifier said; a policy whose rules do not ask for it can still be replayed."""
    content = dict(policy().content)
    pinned = {**content, "route": {**content["route"], "classifier": f"learned@{'a' * 64}"}}
    with pytest.raises(NothingRecordedError, match="try the policy as a shadow"):
        replayed_by(made_policy(pinned, Path("chat.yaml"), {}))
    pinned["route"] = {**pinned["route"], "start": {"local": "tokens_in < 2000", "hosted": "otherwise"}}
    assert replayed_by(made_policy(pinned, Path("chat.yaml"), {})).requests > 600


@pytest.mark.parametrize("source", ["goodput", "speed < 1%", "goodput < -1ms", "ttft_p95 > 5%", "cost > 5"])
def test_a_gate_that_says_nothing_is_refused(source: str) -> None:
    with pytest.raises(GateError):
        Gate.parse(source)


def test_the_command_prints_a_report_and_holds_gates(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tierline policy replay` and `plan` on a file, in text and JSON, with the exit code of a gate."""
    file, base = tmp_path / "new.yaml", tmp_path / "rules" / "chat.yaml"
    base.parent.mkdir()
    base.write_text(yaml.safe_dump(dict(policy().content), sort_keys=False))
    file.write_text(yaml.safe_dump(dict(policy(confidence=0.8).content), sort_keys=False))
    assert main(["policy", "replay", str(file), "--ledger", str(ledger), "--fail-if", "cost > +90%"]) == 0
    out = capsys.readouterr().out
    assert "fidelity 100.00% of" in out and "escalated" in out and "exact" in out
    assert main(["policy", "replay", str(file), "--ledger", str(ledger), "--fail-if", "cost > +1%", "--json"]) == 1
    values = orjson.loads(capsys.readouterr().out)
    assert values["failed_gates"] == ["cost > +1%"] and values["fidelity"]["same"] == values["fidelity"]["decided"]

    plan = tmp_path / "chat.plan"
    arguments = ["--ledger", str(ledger), "--policies", str(base.parent), "--out", str(plan)]
    assert main(["policy", "plan", str(file), *arguments, "--format", "markdown"]) == 0
    page, said = capsys.readouterr()
    assert page.startswith("### Policy plan: chat@") and said.endswith("-m WHY` applies it\n")
    assert (
        "escalate.when.confidence_below 0.62 -> 0.8" in page
        and "canary at 5%: " in page
        and "unchanged, it passes after about" in page
        and "as served by" not in page
    )
    made = read_plan(plan)
    assert made.version == policy(confidence=0.8).version and made.bound.base == policy().version
    assert made.text == file.read_text() and made.replay is not None

    # The file that is in force already, with a test that fails: nothing changes, and it would be refused.
    failing = "policies: [chat.yaml]\ntests: [{name: starts high, given: {tokens_in: 9}, expect: {start: local}}]\n"
    base.with_name("chat.test.yaml").write_text(failing)
    assert main(["policy", "plan", str(base), *arguments]) == 1
    page, said = capsys.readouterr()
    assert "rules the same as what is in force" in page and "refuses it until that is mended" in said

    # The requests were served by another policy than the one in force: the figures before are of that one.
    other = policy(confidence=0.5)
    base.write_text(yaml.safe_dump(dict(other.content), sort_keys=False))
    assert main(["policy", "plan", str(file), *arguments]) == 0
    assert f"before: as served by {policy().label}, not by {other.label}\n" in capsys.readouterr().out


def test_starts_are_counted_as_each_record_decides(ledger: Path) -> None:
    """By cells, the same figures and the same latest examples as when every record is decided by itself."""
    before = policy()
    content = dict(before.content)
    limits = {"local": "p_adequate >= 0.8 and tokens_in < 700 or budget_ms < 3000 or turns > 4", "hosted": "otherwise"}
    other = made_policy({**content, "route": {**content["route"], "start": limits}}, Path("other.yaml"), {})
    alone = made_policy({**content, "tiers": ["hosted"], "route": {"start": {"hosted": "otherwise"}}}, Path("a"), {})
    with connect(ledger) as database:
        rows = database.execute(
            "SELECT basis, given, request_id FROM requests WHERE given IS NOT NULL AND started_s >= $oldest "
            "ORDER BY started_s DESC",
            {"oldest": OLDEST_S},
        ).fetchall()
        blobs = database.execute("SELECT id, basis::VARCHAR FROM bases").fetchall()
        bases = {name: DecisionBasis.decode(blob.encode()) for name, blob in blobs}
        for after in (other, alone):
            both = {name: (policy_on(basis, before), policy_on(basis, after)) for name, basis in bases.items()}
            seen: dict[tuple[str, str], list[str]] = {}
            for name, given, request in rows:
                made = bases[name].input_of(unnamed(given))
                one, two = (decide(which, made).tiers[0] for which in both[name])
                seen.setdefault((one, two), []).append(request)

            def deployed(basis: DecisionBasis, after: Policy = after) -> tuple[Policy, Policy]:
                return policy_on(basis, before), policy_on(basis, after)

            moves = start_moves(database, Which("chat", OLDEST_S), deployed)
            assert moves.counts == {pair: len(requests) for pair, requests in seen.items()}
            assert moves.examples == {pair: requests[:3] for pair, requests in seen.items()}
            assert len(moves.counts) > 1 and moves.counts.total() == len(rows)


def test_a_plan_names_what_has_moved(tmp_path: Path) -> None:
    bound = BoundTo("a" * 64, {"classifier": "one"}, "p1")
    plan = PolicyPlan("chat", "chat.yaml", "surface: chat", "b" * 64, bound, 1.0)
    write_plan(tmp_path / "chat.plan", plan)
    read = read_plan(tmp_path / "chat.plan")
    assert read == plan and why_stale(read, bound) == []
    now = BoundTo("c" * 64, {"classifier": "two", "embedder": "e"}, "p2")
    moved = why_stale(read, now)
    assert moved[0] == "the policy in force was chat@aaaaaaa and is chat@ccccccc"
    assert [text.split()[1] for text in moved[1:3]] == ["classifier", "embedder"] and "prices" in moved[3]
    (tmp_path / "no.plan").write_text('{"kind": "other"}')
    with pytest.raises(PlanError):
        read_plan(tmp_path / "no.plan")


def test_the_ledger_is_in_segments(ledger: Path) -> None:
    """The fixture writes what the keeper writes, so that all of the above reads Parquet."""
    assert len(segments_of(ledger, "requests")) == 1
