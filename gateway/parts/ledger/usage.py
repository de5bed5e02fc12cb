"""Say who used what: requests, tokens and money by key, team, tenant, end user, surface, tier, model and day.

The figures are of every record, in files and as they come, each once: of chats and of what is passed on, those of the
playground too, as somebody's key pays for them. Shadows are the operator's, and in no line. What an operator did to a
budget (a reset, a top-up) is a line of its own, whose `entry` says which; it is of the one owner whose budget it is.
`charged_usd` is what owners pay, `cost_usd` what providers are owed, the operator's judge included; `list_usd` what
hits of the cache would have cost, `wasted_usd` the cost of text that nobody got. By tier, model or backend, money,
tokens and calls are those of whoever was called, requests and hits those of whoever answered. `unpriced` requests had a
call whose price nobody states: the money lacks it. `older` records are of a version that charged nobody: they count by
their cost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.config.schema import DEFAULT_TENANT
from gateway.parts.ledger.folder import quoted
from gateway.telemetry.ledger import ADJUSTMENT, SHADOW

if TYPE_CHECKING:
    from gateway.parts.ledger.live import LiveArchive

_TEXT: Final = Path(__file__).with_suffix(".sql").read_text("utf-8")
_SQL: Final[Mapping[str, str]] = {
    name: sql.strip() for name, sql in re.findall(r"^-- name: (\w+)\n(.*?)(?=^--|\Z)", _TEXT, re.M | re.S)
}
TEAM: Final = f"""(CASE WHEN coalesce(team, '') = '' OR coalesce("key", '') = '' OR tenant = '{DEFAULT_TENANT}'
    THEN coalesce(team, '') ELSE tenant || '/' || team END)"""
"""SQL of a team as an owner (`gateway.parts.access.keys.key_caller.team_of`): keys of the config have no id."""
_TEAM_IS: Final = f"$of_team IN (coalesce(team, ''), {TEAM})"
_COLUMN_IS: Final = "coalesce(\"{0}\", '') = $of_{0}"
_USED: Final = _SQL["used"].format(adjustment=ADJUSTMENT, shadow=SHADOW, owner=TEAM)
_IS_PAID: Final = "(c.attempt > 0 OR c.verifier <> 'judge')"
_CALL: Final = {
    "paid": f"list_filter(calls, lambda c: {_IS_PAID})",
    "is_paid": _IS_PAID,
    "nano": "round(c.cost_usd * 1e9)::HUGEINT",
}
"""SQL of whether a key pays for a call (`gateway/payers.toml`), and of what it cost, in nanodollars."""
FILTERS: Final = ("tenant", "team", "key", "user", "surface", "tier", "model", "backend")
"""Columns that usage can be narrowed down by; as groups there is also `day`."""
BY: Final = ("day", *FILTERS)
_OF_CALLS: Final = frozenset({"tier", "model", "backend"})
"""Columns of a call rather than of its request."""
_OF_FOCUS: Final = ("day", "tenant", "team", "key", "surface", "tier", "model")
"""Columns whose groups are rows of a FOCUS file."""


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which records to sum up, and how: those that began from `since` to before `until`, in Unix seconds.

    `only` gives the values that columns of FILTERS must have. `by` are the columns of BY to group by: each combination
    of their values is a line. Days are those of the time zone `zone`.
    """

    since: float
    until: float
    zone: str = "UTC"
    by: Sequence[str] = ("key",)
    only: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of the queries, by name."""
        return {
            "since": self.since,
            "until": self.until,
            "zone": self.zone,
            **{f"of_{k}": v for k, v in self.only.items()},
        }

    @property
    def used(self) -> str:
        """SQL that selects the records of the query."""
        where = "".join(
            f" AND {_TEAM_IS if name == 'team' else _COLUMN_IS.format(name)}"
            for name in self.only
            if name not in _OF_CALLS
        )
        return f"{_USED}{where}"

    def lines(self, by: Sequence[str] | None = None) -> str:
        """Return the SQL of the lines, grouped by `by` in place of its own columns: days in order."""
        by = self.by if by is None else by
        columns, first = "".join(f'"{name}", ' for name in by), "day, " if "day" in by else ""
        # Two tenants may call teams of theirs the same.
        team = "owner" if "team" in by and "tenant" not in by else "team"
        of_calls = [name for name in self.only if name in _OF_CALLS]
        parted = of_calls or not _OF_CALLS.isdisjoint(by)
        used = f"SELECT * EXCLUDE (team, owner), {team} AS team FROM ({self.used})"
        rows = _SQL["by_call" if parted else "by_request"].format(used=used, **_CALL)
        where = " AND ".join(f"{name} = $of_{name}" for name in of_calls) or "true"
        return _SQL["lines"].format(by=columns, first=first, used=rows, where=where)

    @property
    def focus(self) -> str:
        """SQL of the rows of a file with the columns of FOCUS 1.2, by day, owner and model."""
        return _SQL["focus"].format(lines=self.lines(_OF_FOCUS))


async def usage_lines(archive: LiveArchive, query: UsageQuery) -> dict[str, Any]:
    """Return the lines, the total, every adjustment of a budget, and what the figures cover. Raises QueryError."""
    lines = await archive.ask(query.lines(), query.values)
    adjustments = await archive.ask(_SQL["adjustments"].format(used=query.used), query.values)
    [covered] = await archive.ask(_SQL["coverage"])
    usage = [line for line in lines if line["entry"] == "usage"]
    total = {
        name: sum(line[name] or 0 for line in usage)
        for name in (
            "requests",
            "calls",
            "tokens_in",
            "tokens_out",
            "charged_usd",
            "cost_usd",
            "list_usd",
            "wasted_usd",
            "hits",
            "unpriced",
            "older",
        )
    }
    damaged = {str(file): why for file, why in archive.damaged.items()}
    covers = {**covered, "damaged": damaged, "not_followed": archive.failing}
    return {"by": list(query.by), "lines": lines, "total": total, "adjustments": adjustments, "covers": covers}


async def charges_of(archive: LiveArchive) -> dict[str, int]:
    """Return the sum of the charges of each account of money, in nanodollars, over all records. Raises QueryError."""
    return {row["account"]: int(row["charged"]) for row in await archive.ask(_SQL["charges"])}


def write_rows(archive: LiveArchive, sql: str, values: Mapping[str, Any], file: Path, *, parquet: bool) -> int:
    """Write the rows of a query as Parquet or as CSV; return how many. Times are in UTC. Raises OSError.

    In CSV, an apostrophe stands before a text that a spreadsheet would compute: clients name models.
    """
    import duckdb  # slow to import

    form = "parquet" if parquet else "csv, HEADER, TIMESTAMPFORMAT '%Y-%m-%dT%H:%M:%SZ'"
    draft = file.with_name(f".{file.name}.draft")
    try:
        with archive.cursor() as cursor:
            if not parquet:
                columns = cursor.execute(f"SELECT * FROM ({sql}) LIMIT 0", values).description or ()
                texts = [f'"{name}"' for name, kind, *_ in columns if kind in ("VARCHAR", "STRING")]
                plain = ", ".join(f"regexp_replace({text}, '^[-=+@\\t\\r]', '''\\0') AS {text}" for text in texts)
                sql = f"SELECT * REPLACE ({plain}) FROM ({sql})"
            [[count]] = cursor.execute(f"COPY ({sql}) TO {quoted(draft.absolute())} (FORMAT {form})", values).fetchall()
        draft.replace(file)
    except duckdb.IOException as error:
        raise OSError(str(error)) from None
    finally:
        draft.unlink(missing_ok=True)
    return int(count)
