"""Read recorded requests from the ledger's files as columns of numbers, a batch at a time.

The connection has the views of `gateway.parts.ledger.query`. A batch is a range of `ordinal`, the count of all entries,
so memory stays bounded however long the ledger is; within its segments DuckDB skips what is outside the range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.parts.lab.replay.cells import NO_TIER, Bools, CellVerdict, Floats, Inputs, Ints, VerdictTable
from gateway.parts.recorder.decision_record import FLAGS, BasisError, DecisionBasis
from gateway.report import OnProgress, silent
from policies.expression import KINDS

if TYPE_CHECKING:
    import duckdb

Columns = dict[str, NDArray[Any]]

BATCH: Final = 250_000
"""Most records of one batch, about 100 MB."""


@dataclass(frozen=True, slots=True)
class Which:
    """A choice of recorded requests: those of one surface, since a Unix time, between two ordinals (both included).

    None leaves a condition out.
    """

    surface: str
    since: float | None = None
    first: int | None = None
    until: int | None = None

    @property
    def where(self) -> str:
        """The conditions as SQL, with the parameters in `values`."""
        return (
            "surface = $surface AND ($since IS NULL OR started_s >= $since) "
            "AND ($first IS NULL OR ordinal >= $first) AND ($until IS NULL OR ordinal <= $until)"
        )

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of `where`, by name."""
        return {"surface": self.surface, "since": self.since, "first": self.first, "until": self.until}

    def newest(self, database: duckdb.DuckDBPyConnection, count: int) -> Which:
        """Return the newest `count` of these requests, in the order in which they ended."""
        sql = (
            f"SELECT min(ordinal), max(ordinal) FROM (SELECT ordinal FROM requests WHERE {self.where} "
            f"ORDER BY ordinal DESC LIMIT {count})"
        )
        [[first, until]] = database.execute(sql, self.values).fetchall()
        return replace(self, first=first, until=until)


@dataclass(frozen=True, slots=True)
class Words:
    """Numbers for the texts that occur in a column, from 1; 0 stands for no text."""

    every: tuple[str, ...]

    def sql(self, column: str) -> str:
        """Return the SQL expression of the number of the column's text."""
        words = ", ".join("'" + word.replace("'", "''") + "'" for word in self.every)
        return f"coalesce(list_position([{words}]::VARCHAR[], {column}), 0)" if self.every else "0"

    def number(self, word: str) -> int:
        """Return the number of a text; 0 if it does not occur."""
        return self.every.index(word) + 1 if word in self.every else 0


@dataclass(frozen=True, slots=True)
class Calls:
    """The backend calls of a batch, one row each, in the order of their requests. Missing numbers are NaN.

    `request` is the position of the request in the batch; `tier`, `model`, `outcome`, `basis`, `fault` and `finish`
    are numbers of the ledger's `Words`. Costs are in US dollars, times in milliseconds.
    """

    request: Ints
    attempt: Ints
    tier: Ints
    model: Ints
    outcome: Ints
    basis: Ints
    fault: Ints
    finish: Ints
    tokens_in: Floats
    tokens_out: Floats
    cost_usd: Floats
    wasted: Bools
    ttft_ms: Floats
    total_ms: Floats
    start_ms: Floats
    confidence: Floats


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Some requests, their calls, and the inputs of the decisions by basis."""

    requests: Columns
    """Columns of `History`, in its types: those that neither a call nor a decision made again gives."""
    calls: Calls
    inputs: dict[int, tuple[Ints, Inputs]]
    """By basis: the positions of its requests in the batch, and their inputs."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.requests["basis"])


@dataclass(frozen=True, slots=True)
class DecidedBatch:
    """Some requests on which something was decided: when they began, their entries' ids (n, 2), and inputs by basis."""

    started_s: Floats
    place: Ints
    inputs: dict[int, tuple[Ints, Inputs]]


class RecordedHit(NamedTuple):
    """A cache hit: the stored entry that answered it, how old that was in seconds, and since when it was stored.

    `created_s` is in Unix seconds, `similarity` how alike the questions were, 0 to 1; None where it is not recorded.
    """

    entry: str = ""
    age_s: float = 0.0
    created_s: float | None = None
    similarity: float | None = None


class LedgerReader:
    """Read the requests of one surface. Every text is a number of one of the `Words`, made once."""

    def __init__(self, database: duckdb.DuckDBPyConnection, which: Which, table: VerdictTable) -> None:
        """Look up what occurs. Raises BasisError if a basis cannot be read."""
        self.database = database
        self.which = which
        self.table = table
        unpriced = "count(*) FILTER (coalesce(cost_unknown, false))"
        left_out = "coalesce(sum(tokens_left_out), 0)"
        more = ("count(*)", "min(ordinal)", "max(ordinal)", "max(len(given.difficulty.p_right))", unpriced, left_out)
        words, (count, first, last, heads, self.unpriced, self.tokens_left_out) = self._words("requests", _WORDS, more)
        self.count, self._first, self._last, self._heads = int(count), first or 0, last or -1, int(heads or 0)
        called, _ = self._words(_CALLS, [f"c.{name}" for name in _CALL_WORDS])
        self.basis_ids, self.paths, self.tenants = Words(words["basis"]), Words(words["path"]), Words(words["tenant"])
        self.bases = [self._basis(name) for name in self.basis_ids.every]
        self.tiers = Words(tuple(sorted({*words["tier"], *called["c.tier"]})))
        self.models, self.outcomes = Words(called["c.model"]), Words(called["c.outcome"])
        self.signals, self.faults = Words(called["c.basis"]), Words(called["c.fault"])
        self.finishes = Words(called["c.finish"])
        self._names = Words(tuple(sorted({*words["given.min_tier"], *words["given.max_tier"]})))
        kinds = words["given.difficulty.kind"]
        self.kinds = Words((*KINDS, *(kind for kind in kinds if kind not in KINDS)))
        self._verdicts: dict[int, int] = {}
        """Number of the verdict of each recorded decision met so far, by the decision's hash."""
        self._hits: dict[str, dict[tuple[int, int], RecordedHit]] = {}
        self._rated = bool(database.execute("SELECT count(*) FROM feedback").fetchall()[0][0])

    def batches(self, on_progress: OnProgress = silent) -> Iterator[RecordBatch]:
        """Yield the requests in the order in which they ended."""
        done = 0
        steps = range(self._first, self._last + 1, BATCH)
        for start in steps:
            batch = self._batch(start, start + BATCH)
            done += len(batch)
            if len(batch):
                yield batch
            on_progress("replaying", done, self.count)

    def decided(self, on_progress: OnProgress = silent) -> Iterator[DecidedBatch]:
        """Yield what was decided on, without what came of it, in the order in which the requests ended."""
        done, total = 0, self.count
        for start in range(self._first, self._last + 1, BATCH):
            where = f"{self.which.where} AND ordinal >= {start} AND ordinal < {start + BATCH} AND given IS NOT NULL"
            columns = ", ".join(["entry_ms", "entry_seq", "started_s", *self._coded(), *self._given()])
            got = self.database.execute(f"SELECT {columns} FROM requests WHERE {where}", self.which.values).fetchnumpy()
            place = _places(got["entry_ms"], got["entry_seq"])
            if len(place):
                yield DecidedBatch(_floats(got["started_s"]), place, self._by_basis(got))
            done = min(total, done + BATCH)
            on_progress("deciding again", done, total)

    def hits(self, path: str) -> dict[tuple[int, int], RecordedHit]:
        """Return what is recorded of each hit of this path, by its place. It is read once."""
        if path not in self._hits:
            self._hits[path] = self._read_hits(path)
        return self._hits[path]

    def _read_hits(self, path: str) -> dict[tuple[int, int], RecordedHit]:
        name = "cache.exact" if path == "cache-exact" else "cache.semantic"
        entry, age, created = "'tierline.cache.entry'", "'tierline.cache.age_s'", "'tierline.cache.created_at'"
        sql = (
            f"SELECT entry_ms, entry_seq, coalesce((hop->'attributes')->>{entry}, ''), "
            f"coalesce(((hop->'attributes')->>{age})::DOUBLE, 0), ((hop->'attributes')->>{created})::DOUBLE, "
            "similarity FROM (SELECT entry_ms, entry_seq, similarity, unnest(CAST(hops AS JSON[])) AS hop "
            f"FROM requests WHERE {{where}} AND path = '{path}') WHERE (hop->>'name') = '{name}'"
        )
        return {(ms, seq): RecordedHit(*rest) for ms, seq, *rest in self._all(sql)}

    def labels(self) -> dict[tuple[int, int], list[tuple[str, bool, float]]]:
        """Return by a request's place what a judge said of two tiers' answers: tier, whether served, how adequate."""
        sql = (
            "SELECT r.entry_ms, r.entry_seq, l.small.tier, l.small.served, l.small.adequate, "
            "l.strong.tier, l.strong.served, l.strong.adequate "
            f"FROM (SELECT * FROM requests WHERE {self.which.where}) r JOIN labels l USING (tenant, request_id)"
        )
        rows = self.database.execute(sql, self.which.values).fetchall()
        return {(ms, seq): [tuple(labels[:3]), tuple(labels[3:])] for ms, seq, *labels in rows}

    def decisions(self, count: int) -> Iterator[tuple[int, str, dict[str, Any], list[Any] | None]]:
        """Yield the first records of decisions: the place of the basis, the request's id, the input, the decision."""
        sql = (
            f"SELECT {self.basis_ids.sql('basis')} - 1, request_id, given, decision FROM requests "
            f"WHERE {self.which.where} AND given IS NOT NULL LIMIT {count}"
        )
        cursor = self.database.cursor().execute(sql, self.which.values)
        while rows := cursor.fetchmany(_PAGE):
            for basis, request_id, given, decision in rows:
                out = None if decision is None else [decision[name] for name in _DECISION]
                if out is not None:
                    out[3] = int(out[3])
                yield basis, request_id, given, out

    def every_id(self) -> list[str]:
        """Return the ids of all requests, in the order in which they ended."""
        return [name for (name,) in self._all("SELECT request_id FROM requests WHERE {where} ORDER BY ordinal")]

    def request_ids(self, places: Ints) -> list[str]:
        """Return the ids of the requests of these entries, in their order."""
        if not len(places):
            return []
        wanted = ", ".join(f"({ms}, {seq})" for ms, seq in places.tolist())
        sql = "SELECT entry_ms, entry_seq, request_id FROM requests WHERE {where} "
        sql += f"AND entry_ms IN ({', '.join(map(str, places[:, 0].tolist()))}) AND (entry_ms, entry_seq) IN ({wanted})"
        names = {(ms, seq): name for ms, seq, name in self._all(sql)}
        return [names[ms, seq] for ms, seq in places.tolist()]

    def _batch(self, first: int, end: int) -> RecordBatch:
        within = f"FROM requests WHERE {self.which.where} AND ordinal >= {first} AND ordinal < {end}"
        columns = ", ".join([*_REQUEST, *self._coded(), *self._given()])
        got = _in_order(self.database.execute(f"SELECT {columns} {within}", self.which.values).fetchnumpy())
        score = self._scores(first, end, got)
        recorded = self._recorded(np.ma.getdata(got["hash_"]).astype(np.uint64), within)
        requests = _requests(got, recorded, score)
        return RecordBatch(requests, self._calls(within, got), self._by_basis(got))

    def _given(self) -> list[str]:
        tiers = max([len(basis.tiers) for basis in self.bases], default=0)
        health = [
            f"given.health[{place}].{name} AS {name}_{place}"
            for place in range(1, tiers + 1)
            for name in ("ttft_s", "whole_s")
        ]
        health += [
            f"given.costs[{place}].{name} AS {name}_{place}"
            for place in range(1, tiers + 1)
            for name in ("usd", "cold_s")
        ]
        states = [
            f"CASE WHEN coalesce(given.health[{place}].unavailable, '') = '' THEN 0 "
            f"WHEN given.health[{place}].failing THEN 2 ELSE 1 END AS state_{place}"
            for place in range(1, tiers + 1)
        ]
        heads = [f"given.difficulty.p_right[{place}] AS p_{place}" for place in range(1, self._heads + 1)]
        return [*_GIVEN, *health, *states, *heads]

    def _by_basis(self, got: dict[str, Any]) -> dict[int, tuple[Ints, Inputs]]:
        of, inputs = _ints(got["basis_"]) - 1, {}
        for number, basis in enumerate(self.bases):
            rows = np.flatnonzero(of == number)
            if len(rows):
                inputs[number] = rows, self._inputs(got, rows, len(basis.tiers))
        return inputs

    def _coded(self) -> list[str]:
        return [
            f"{self.basis_ids.sql('basis')} AS basis_",
            f"{self.paths.sql('path')} AS path_",
            f"{self.tiers.sql('tier')} AS tier_",
            f"{self.tenants.sql('tenant')} AS tenant_",
            f"{self.kinds.sql('given.difficulty.kind')} AS kind_",
            f"{self._names.sql('given.min_tier')} AS min_",
            f"{self._names.sql('given.max_tier')} AS max_",
            f"{self._names.sql('given.budget_cap')} AS cap_",
        ]

    def _inputs(self, got: dict[str, Any], rows: Ints, tiers: int) -> Inputs:
        def floats(name: str) -> Floats:
            return _floats(got[name])[rows]

        def ints(name: str) -> Ints:
            return _ints(got[name])[rows]

        health = {
            name: np.stack([_floats(got[f"{name}_{place}"])[rows] for place in range(1, tiers + 1)], axis=1)
            for name in ("ttft_s", "whole_s", "usd", "cold_s")
        }
        states = np.stack([_ints(got[f"state_{place}"])[rows] for place in range(1, tiers + 1)], axis=1)
        heads = [_floats(got[f"p_{place}"])[rows] for place in range(1, self._heads + 1)]
        return Inputs(
            tokens_in=ints("given_tokens"),
            turns=ints("turns"),
            flags=ints("flags"),
            budget_s=floats("budget_s"),
            limit_s=floats("limit_s"),
            room=ints("room"),
            holdout=ints("held_out") > 0,
            clamps=np.stack([ints("min_"), ints("max_")], axis=1),
            judged=ints("judged") > 0,
            in_domain=ints("in_domain") > 0,
            kind=ints("kind_"),
            quantile=floats("quantile"),
            effort=floats("effort"),
            before=floats("before"),
            last_tier=ints("last_tier"),
            budget_share=floats("budget_share"),
            budget_cap=ints("cap_"),
            p_right=np.stack(heads, axis=1) if heads else np.zeros((len(rows), 0)),
            state=states,
            ttft_s=health["ttft_s"],
            whole_s=health["whole_s"],
            usd=health["usd"],
            cold_s=np.nan_to_num(health["cold_s"]),
            names=self._names.every,
            kinds=self.kinds.every,
        )

    def _calls(self, within: str, got: dict[str, Any]) -> Calls:
        """Return the calls of the batch's requests, in the order of the requests."""
        coded = {
            "tier": self.tiers,
            "model": self.models,
            "outcome": self.outcomes,
            "basis": self.signals,
            "fault": self.faults,
            "finish": self.finishes,
        }
        columns = ", ".join([*(f"{words.sql(f'c.{name}')} AS {name}" for name, words in coded.items()), *_CALL])
        sql = f"SELECT ordinal, {columns} FROM (SELECT ordinal, unnest(calls) AS c {within})"
        calls = _in_order(self.database.execute(sql, self.which.values).fetchnumpy())
        per_request = _ints(got["calls_"])
        if not np.array_equal(np.repeat(_ints(got["ordinal"]), per_request), _ints(calls["ordinal"])):
            raise AssertionError("calls were read of other requests than the batch has")
        columns_of_calls: dict[str, Any] = {
            **{name: _ints(calls[name]) for name in (*coded, "attempt")},
            **{name: _floats(calls[name]) for name in _CALL_FLOATS},
        }
        return Calls(
            request=np.repeat(np.arange(len(per_request)), per_request),
            wasted=_ints(calls["wasted"]) > 0,
            **columns_of_calls,
        )

    def _scores(self, first: int, end: int, got: dict[str, Any]) -> Floats:
        """Return the feedback on each request of the batch, NaN without any."""
        sql = (
            f"SELECT r.entry_ms, r.entry_seq, f.score FROM (SELECT * FROM requests WHERE {self.which.where} "
            f"AND ordinal >= {first} AND ordinal < {end}) r JOIN feedback f USING (tenant, request_id)"
        )
        scores = np.full(len(got["entry_ms"]), np.nan)
        if not self._rated:
            return scores
        rated = self.database.execute(sql, self.which.values).fetchnumpy()
        own = _places(got["entry_ms"], got["entry_seq"])
        at = {tuple(place): number for number, place in enumerate(own.tolist())}
        for place, score in zip(_places(rated["entry_ms"], rated["entry_seq"]).tolist(), rated["score"], strict=True):
            scores[at[tuple(place)]] = score
        return scores

    def _recorded(self, hashes: NDArray[np.uint64], within: str) -> Ints:
        """Return the number of the recorded verdict of each request, by the hash of its decision."""
        different, which = np.unique(hashes, return_inverse=True)
        new = [number for number in different.tolist() if number not in self._verdicts]
        if new:
            wanted = ", ".join(map(str, new))
            sql = f"SELECT {_HASH} AS hash, any_value(decision) {within} AND {_HASH} IN ({wanted}) GROUP BY 1"
            for number, decision in self.database.execute(sql, self.which.values).fetchall():
                self._verdicts[int(number)] = self.table.number(_verdict(decision))
        return np.array([self._verdicts[number] for number in different.tolist()], np.int64)[which]

    def _basis(self, name: str) -> DecisionBasis:
        row = self.database.execute("SELECT basis FROM bases WHERE id = ?", [name]).fetchone()
        if row is None:
            raise BasisError(f"the ledger lacks the basis {name} of decisions; was bases.jsonl deleted?")
        return DecisionBasis.decode(str(row[0]).encode())

    def _words(
        self, source: str, columns: Sequence[str], more: Sequence[str] = ()
    ) -> tuple[dict[str, tuple[str, ...]], tuple[Any, ...]]:
        """Return the texts that occur in each of these columns, and more figures, in one pass over the files."""
        lists = ", ".join([*(f"list(DISTINCT {column})" for column in columns), *more])
        row = self._one(f"SELECT {lists} FROM {source} WHERE {{where}}")
        texts = {
            column: tuple(sorted(word for word in words or () if word))
            for column, words in zip(columns, row[: len(columns)], strict=True)
        }
        return texts, row[len(columns) :]

    def _one(self, sql: str) -> tuple[Any, ...]:
        return self._all(sql)[0]

    def _all(self, sql: str) -> list[tuple[Any, ...]]:
        return self.database.execute(sql.format(where=self.which.where), self.which.values).fetchall()


_PAGE: Final = 1000
_DECISION: Final = ("tiers", "fallbacks", "missing", "weaker", "reason", "stand_in")
_WORDS: Final = ("basis", "path", "tenant", "tier", "given.min_tier", "given.max_tier", "given.difficulty.kind")
_CALL_WORDS: Final = ("tier", "model", "outcome", "basis", "fault", "finish")
_CALLS: Final = "(SELECT surface, started_s, ordinal, unnest(calls) AS c FROM requests)"
_HASH: Final = (
    "CASE WHEN basis IS NULL THEN 0 WHEN decision IS NULL THEN 1 ELSE hash(decision.tiers, decision.fallbacks, "
    "decision.missing, decision.weaker, decision.stand_in <> '', split_part(decision.reason, '; ', 1)) END"
)
_REQUEST: Final = (
    "ordinal",
    "entry_ms",
    "entry_seq",
    f"{_HASH} AS hash_",
    "stream::TINYINT AS stream_",
    # What a client was refused for its own limits counts as its mistake; older records do not say who refused.
    "if(coalesce(ended = 'refused', status = 429 AND attempts = 0), 400, status)::INTEGER AS status",
    "(error IS NOT NULL AND coalesce(ended NOT IN ('refused', 'left'), true))::TINYINT AS failed",
    "answer_tokens_in::DOUBLE AS answer_tokens",
    "answer_tokens_out::DOUBLE AS answer_tokens_out",
    "cost_usd",
    "wasted_usd",
    "ttft_ms",
    "tpot_ms",
    "gap_ms",
    "total_ms",
    "started_s",
    "coalesce(holdout::TINYINT, -1) AS drawn",
    "len(calls) AS calls_",
)
_GIVEN: Final = (
    "given.tokens_in AS given_tokens",
    "given.turns AS turns",
    f"({' + '.join(f'{bit} * coalesce(given.{name}::INTEGER, 0)' for name, bit in FLAGS.items())}) AS flags",
    "given.budget_s AS budget_s",
    "given.ttft_s AS limit_s",
    "given.room AS room",
    "given.holdout::TINYINT AS held_out",
    "(given.difficulty IS NOT NULL)::TINYINT AS judged",
    "given.difficulty.in_domain::TINYINT AS in_domain",
    "given.difficulty.quantile AS quantile",
    "given.difficulty.effort AS effort",
    "given.before AS before",
    "given.last_tier AS last_tier",
    "given.budget_share AS budget_share",
)
_CALL_FLOATS: Final = (
    "tokens_in",
    "tokens_out",
    "cost_usd",
    "ttft_ms",
    "total_ms",
    "start_ms",
    "confidence",
)
_CALL: Final = ("c.attempt AS attempt", "c.wasted::TINYINT AS wasted", *(f"c.{n}::DOUBLE AS {n}" for n in _CALL_FLOATS))


_NUMBERS: Final[Mapping[str, tuple[str, Any]]] = {
    "path": ("path_", np.int32),
    "tier": ("tier_", np.int32),
    "tenant": ("tenant_", np.int32),
    "status": ("status", np.int32),
    "holdout": ("drawn", np.int8),
    "stream": ("stream_", np.bool_),
    "failed": ("failed", np.bool_),
}
_AMOUNTS: Final[Mapping[str, tuple[str, Any]]] = {
    "cost_usd": ("cost_usd", np.float64),
    "wasted_usd": ("wasted_usd", np.float64),
    "ttft_ms": ("ttft_ms", np.float32),
    "tpot_ms": ("tpot_ms", np.float32),
    "gap_ms": ("gap_ms", np.float32),
    "total_ms": ("total_ms", np.float32),
    "started_s": ("started_s", np.float64),
    "tokens": ("answer_tokens", np.float32),
    "answer_in": ("answer_tokens", np.float32),
    "answer_out": ("answer_tokens_out", np.float32),
}
"""Columns of `History` by the names that they have in `_REQUEST`, with their types."""


def _requests(got: dict[str, Any], recorded: Ints, score: Floats) -> Columns:
    return {
        "basis": (_ints(got["basis_"]) - 1).astype(np.int32),
        "recorded": recorded.astype(np.int32),
        "score": score.astype(np.float32),
        "place": _places(got["entry_ms"], got["entry_seq"]),
        **{name: _ints(got[column]).astype(kind) for name, (column, kind) in _NUMBERS.items()},
        **{name: _floats(got[column]).astype(kind) for name, (column, kind) in _AMOUNTS.items()},
    }


def _verdict(decision: dict[str, Any] | None) -> CellVerdict:
    if decision is None:
        return NO_TIER
    tiers, fallbacks, missing = (tuple(decision[name]) for name in ("tiers", "fallbacks", "missing"))
    rule = decision["reason"].split("; ", 1)[0]
    return CellVerdict(tiers, fallbacks, missing, bool(decision["weaker"]), bool(decision["stand_in"]), rule)


def _in_order(got: dict[str, Any]) -> dict[str, Any]:
    """Return columns in the order of their `ordinal`, which several threads of DuckDB may not keep."""
    ordinals = _ints(got["ordinal"])
    if (ordinals[1:] >= ordinals[:-1]).all():
        return got
    order = np.argsort(ordinals, kind="stable")
    return {name: column[order] for name, column in got.items()}


def _floats(column: Any) -> Floats:
    values: Floats = np.ma.filled(np.ma.asarray(column).astype(np.float64), np.nan)
    return values


def _ints(column: Any) -> Ints:
    values: Ints = np.ma.filled(np.ma.asarray(column).astype(np.int64), 0)
    return values


def _places(entry_ms: Any, entry_seq: Any) -> Ints:
    return np.stack([_ints(entry_ms), _ints(entry_seq)], axis=1)
