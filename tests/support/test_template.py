"""The gateways that tests start as forks of one process."""

from __future__ import annotations

import http.client
from pathlib import Path

from tests.support.gateway import Gateway, serve
from tests.support.upstream import Upstream


def _request_ids(gateway: Gateway) -> set[str]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=15)
    ids = set()
    for _ in range(50):
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        response.read()
        ids.add(response.headers["x-request-id"])
    connection.close()
    return ids


def test_two_forks_draw_different_ids(tmp_path: Path, upstream: Upstream) -> None:
    """A fork does not go on with the random state that the template got when it was started."""
    folders = [tmp_path / "one", tmp_path / "other"]
    with serve(folders[0], upstream.url) as one, serve(folders[1], upstream.url) as other:
        ids, others = _request_ids(one), _request_ids(other)
    assert len(ids) == len(others) == 50
    assert not ids & others
