"""Filters: from a URL to SQL, and back."""

from __future__ import annotations

from urllib.parse import parse_qsl

import duckdb
import pytest

from gateway.parts.console.filters import FLAGS, BadFilter, query_filter
from gateway.parts.ledger.columns import REQUESTS

ALL = "surface=chat&tier=!local&is=slow&is=escalated&since=1h&slower=400ms&q=req_1"


def test_a_filter_survives_its_url() -> None:
    wanted = query_filter(parse_qsl(ALL))
    assert query_filter(parse_qsl(wanted.query)) == wanted
    assert len(wanted.words) == 7
    for words, query in wanted.words:
        fewer = query_filter(parse_qsl(query))
        assert len(fewer.words) == 6 and words not in dict(fewer.words), words
    assert query_filter(parse_qsl(wanted.with_(surface="", tier="hosted"))).texts == {"tier": "hosted"}


def test_every_filter_is_sql() -> None:
    """Each condition is one that DuckDB takes over the table's columns, and values are never part of the text."""
    with duckdb.connect() as database:
        columns = ", ".join(f'"{name}" {kind}' for name, kind in REQUESTS.columns.items())
        database.execute(f"CREATE TABLE requests ({columns})")
        for query in (ALL, "", *(f"is={flag}" for flag in FLAGS), "conversation=00c0ffee", "surface=a' OR 1=1 --"):
            where, values = query_filter(parse_qsl(query)).where(1e9)
            assert "OR 1=1" not in where
            database.execute(f"SELECT count(*) FROM requests WHERE {where}", values)


@pytest.mark.parametrize(("query", "says"), [("since=2h", "2h"), ("is=odd", "odd"), ("slower=fast", "fast")])
def test_a_bad_filter_says_what_there_is(query: str, says: str) -> None:
    with pytest.raises(BadFilter, match=says):
        query_filter(parse_qsl(query))
