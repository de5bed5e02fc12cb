"""The headers that the code reads and sets, those of its tables, and those of the README agree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.request.context import REPLY_HEADERS
from gateway.request.options import REQUEST_HEADERS

ROOT = Path(__file__).parents[3]
TABLES = {"REQUEST_HEADERS": REQUEST_HEADERS, "REPLY_HEADERS": REPLY_HEADERS}
SERVING = (
    *("http", "server", "request", "caching", "cascade", "telemetry/trace.py", "errors.py"),
    *("parts/access/quotas", "parts/access/admission.py", "parts/apis", "parts/services", "parts/openapi"),
)
HYPHENATED = re.compile(r"[a-z]+(-[a-z0-9]+)+")
WORDS = {"accept", "age", "allow", "authorization", "connection", "date", "etag", "expect", "host", "origin", "range"}
WORDS |= {"te", "traceparent", "tracestate", "trailer", "upgrade", "vary", "via", "warning"}
NOT_HEADERS = {"no-cache", "no-store", "only-if-cached", "max-age", "min-fresh", "min-similarity", "text-embedding"}
OF_THE_PAGE = {"content-security-policy", "x-content-type-options"}
"""Headers of `/docs` for the browser that shows it."""
OF_HTTP = {"transfer-encoding", "expect", "proxy-authorization"}
"""Headers by which the server reads a message, before there is a request."""
OF_COMMENTS = {"x-tierline-continued-by"}
"""Named like headers, in a stream's last comment alone."""


def files() -> Iterator[Path]:
    for place in SERVING:
        at = ROOT / "gateway" / place
        yield from [at] if at.is_file() else sorted(at.rglob("*.py"))


def names_in(file: Path) -> Iterator[str]:
    """The header names among a file's constants, but for those of the two tables."""
    for statement in ast.parse(file.read_text()).body:
        if isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") in TABLES:
            continue
        for node in ast.walk(statement):
            match node:
                case ast.Constant(value=bytes(value)):
                    name = value.decode("latin-1")
                    if HYPHENATED.fullmatch(name) or name in WORDS:
                        yield name
                case ast.Constant(value=str(name)) if re.fullmatch(r"(x-|anthropic-|openai-)[a-z-]+", name):
                    yield name


def used() -> dict[str, str]:
    """Header names that the serving code mentions, each with a file that does."""
    return {name: file.name for file in files() for name in names_in(file) if name not in NOT_HEADERS}


def test_the_code_names_no_header_that_the_tables_lack() -> None:
    tables = {name.decode() for table in TABLES.values() for name in table}
    assert {
        name: file for name, file in used().items() if name not in tables | OF_THE_PAGE | OF_HTTP | OF_COMMENTS
    } == {}


@pytest.mark.parametrize("table", TABLES)
def test_the_tables_name_no_header_that_the_code_does_not_use(table: str) -> None:
    """What is passed on is passed on by the tables themselves."""
    mentioned = used().keys()
    unused = {name.decode() for name, one in TABLES[table].items() if name.decode() not in mentioned}
    assert unused == {name.decode() for name, one in TABLES[table].items() if one.at == "passed"} - mentioned


def test_the_readme_names_the_same_headers() -> None:
    """What is described is named in the two tables of gateway/README.md, and what they name is described."""
    text = (ROOT / "gateway" / "README.md").read_text()
    for title, table in (("## Request headers", REQUEST_HEADERS), ("## Response headers", REPLY_HEADERS)):
        section = text.partition(title)[2].partition("\n## ")[0]
        described = {name.decode() for name, one in table.items() if one.text and one.at != "passed"}
        for name in described:
            assert re.search(rf"`{name}[`:]", section, re.IGNORECASE), (title, name)
        rows = (line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
        named = {name.lower() for row in rows for name in re.findall(r"`([A-Za-z]+(?:-[A-Za-z]+)+)", row)}
        assert {one for one in named if one.startswith("x-")} <= {name.decode() for name in table} | OF_COMMENTS
