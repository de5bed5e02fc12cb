"""Lost cache hits of a replay: who asked first is found, and what became of it stands for the hit."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

from gateway.parts.lab.replay.cells import VerdictTable
from gateway.parts.lab.replay.history import Read, read_history
from gateway.parts.lab.replay.lost_hits import LostHits, as_asked, lost_hits
from gateway.parts.lab.replay.records import LedgerReader, Which
from gateway.parts.lab.replay.run import replay
from gateway.parts.ledger.query import connect
from tests.bench.replay_truth import truth_of
from tests.support.ledger_files import write_ledger
from tests.support.scripted_world import World, policy

N = 900
CANDIDATE = policy(semantic=False)


@pytest.fixture(scope="module")
def world() -> World:
    return World(N, seed=11)


@pytest.fixture(scope="module")
def database(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder = tmp_path_factory.mktemp("ledger")
    write_ledger(folder, world.live(policy()), [world.basis(policy())])
    with connect(folder, threads=1) as connection:
        yield connection


@pytest.fixture(scope="module")
def found(database: duckdb.DuckDBPyConnection) -> tuple[Read, LostHits]:
    """What was recorded, and the hits that are lost without the semantic cache."""
    reader = LedgerReader(database, Which("chat", None), VerdictTable())
    read = read_history(reader, CANDIDATE)
    return read, lost_hits(reader, read.history, policy(), CANDIDATE)


def test_the_request_that_was_answered_first_is_found(world: World, found: tuple[Read, LostHits]) -> None:
    """Of every lost hit, by the tier, the tokens and the time of the stored answer."""
    _, lost = found
    assert len(lost.rows) > 50 and lost.linked.all()
    assert (lost.origin < lost.rows).all()
    assert world.source[lost.origin].tolist() == world.source[lost.rows].tolist()


def test_an_answer_from_before_the_record_has_no_origin(found: tuple[Read, LostHits]) -> None:
    """Of those who got it, each asks the same as the others, and nothing else is known."""
    read, lost = found
    nowhere = LostHits(lost.rows, lost.entry, np.full(len(lost.rows), -1))
    history = as_asked(read.history, nowhere)
    asked = history.question[lost.rows]
    assert len(np.unique(asked)) == len(np.unique(lost.entry)) < len(lost.rows)
    assert not np.isin(asked, read.history.question).any()


def test_a_lost_hit_is_seen_as_its_origin_was(found: tuple[Read, LostHits]) -> None:
    read, lost = found
    history = as_asked(read.history, lost)
    for name in ("question", "lasting", "rules", "kind", "budget_s"):
        column = getattr(history, name)
        assert np.array_equal(column[lost.rows], column[lost.origin], equal_nan=name == "budget_s")
    assert not np.array_equal(read.history.question[lost.rows], history.question[lost.rows]), "a copy is changed"


def test_what_lost_hits_cost_is_known_from_who_asked_first(world: World, database: duckdb.DuckDBPyConnection) -> None:
    """A popular question in all its wordings costs what it cost: not what a request alike did."""
    result = replay(database, CANDIDATE, verify=0)
    truth = truth_of(list(world.live(CANDIDATE)), 1.5)
    cost = result.figures["cost"]
    assert cost.after == pytest.approx(truth["cost"], rel=0.005)
    assert 0 < cost.high - cost.low < 0.01 * truth["cost"]
    assert result.lost_hits > 50 and result.no_evidence == 0
