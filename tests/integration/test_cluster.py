"""Two gateways on one Redis Cluster, each knowing another of its nodes: caches, shared flights, traces, commands."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import orjson
import pytest

from gateway.cli.main import main
from tests.support.ask import ask
from tests.support.cluster import Cluster, cluster_of
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

POLICY = CHAT + "  semantic: {ttl: 1h, audit: 0%}\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of() as made:
        yield made


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as running:
        running.default = Reply(text="Rome.", logprob=-0.01)
        yield running


@pytest.fixture(scope="module")
def gateways(
    tmp_path_factory: pytest.TempPathFactory, upstream: Upstream, cluster: Cluster
) -> Iterator[tuple[Gateway, Gateway]]:
    folders: list[Path] = [tmp_path_factory.mktemp(name) for name in ("one", "other")]
    served = [
        serve(folder, upstream.url, upstream.url, store_url=url, policies={"chat": POLICY})
        for folder, url in zip(folders, cluster.urls[1:], strict=True)
    ]
    with served[0] as one, served[1] as other:
        yield one, other


def comes_from(gateway: Gateway, question: str, path: str) -> None:
    until(lambda: ask(gateway, question).headers["x-tierline-path"] == path, 20, f"{path} for {question}")


def test_readiness_says_how_many_nodes_there_are(gateways: tuple[Gateway, Gateway]) -> None:
    """And that all of them are well."""
    well = {"status": "ok", "reason": "", "nodes": 3}
    for gateway in gateways:
        until(lambda gateway=gateway: httpx2.get(f"{gateway.origin}/readyz").json()["store"] == well, 10, "three nodes")


def test_answers_are_shared_exactly_and_by_meaning(gateways: tuple[Gateway, Gateway]) -> None:
    """Whichever gateway they were given by."""
    one, other = gateways
    for country in ("Italy", "Kenya", "Peru"):
        assert ask(one, f"What is the capital of {country}?").headers["x-tierline-path"] == "direct"
        comes_from(other, f"What is the capital of {country}?", "cache-exact")
    until(
        lambda: ask(other, "what's the capital of Italy").headers["x-tierline-path"].startswith("cache"),
        20,
        "a hit by meaning",
    )


def test_equal_requests_at_both_are_one_call(gateways: tuple[Gateway, Gateway], upstream: Upstream) -> None:
    """Leases and the streams of flights lie where their keys do; a busy machine may miss the store's time once."""
    upstream.default, calls = Reply(text="A botanist.", logprob=-0.01, before_first_s=0.5), list[int]()
    for number in range(5):
        question, before = f"Who wrote volume {number} of the encyclopaedia of ferns?", len(upstream.requests)
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda place, question=question: ask(gateways[place % 2], question), range(8)))
        assert {reply.status_code for reply in replies} == {200}
        calls.append(len(upstream.requests) - before)
    assert sorted(calls)[:3] == [1, 1, 1]


def test_commands_read_the_whole_cluster(
    gateways: tuple[Gateway, Gateway], cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Traces and the cache's shelves, by way of any node."""
    request = ask(gateways[0], "What is the capital of Chile?").headers["x-request-id"]
    for country in ("Chile", "Ghana", "Japan", "Nepal"):
        comes_from(gateways[0], f"What is the capital of {country}?", "cache-exact")
    for url in cluster.urls:
        until(lambda url=url: main(["trace", "show", request, "--store", url, "--json"]) == 0, 10, "the trace")
        capsys.readouterr()
        assert main(["cache", "stats", "--store", url, "--gateway", gateways[0].url, "--json"]) == 0
        told = orjson.loads(capsys.readouterr().out)
        assert sum(scope["entries"] for scope in told["scopes"]) >= 4
