"""The headers that explain a reply."""

from __future__ import annotations

from gateway.http.messages import explain
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace


def dropped_header(*paths: str) -> bytes:
    ledger = Ledger("req_1", dropped=paths)
    return dict(explain(Trace(names.REQUEST), ledger))[b"x-tierline-dropped"]


def test_dropped_fields_are_named_in_printable_ascii() -> None:
    """The names are the client's own: a line break in one must not end the header."""
    assert dropped_header("seed", "messages[0].a\r\nx-evil: 1", "größe") == (
        b"seed, 'messages[0].a\\r\\nx-evil: 1', gr\\xf6\\xdfe"
    )


def test_dropped_fields_are_at_most_2_kib() -> None:
    listed = dropped_header(*(f"messages[{i}].name" for i in range(1000)))
    *whole, last = listed.decode().split(", ")
    assert len(listed) <= 2048
    assert whole == [f"messages[{i}].name" for i in range(len(whole))]
    assert last == f"and {1000 - len(whole)} more"
    assert len(dropped_header("x" * 5000)) <= 2048
