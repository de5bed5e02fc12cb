from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest

from cache.store.base import Append, NoStore
from cache.store.redis_store import RedisStore
from gateway.config.schema import Limits, TelemetryConfig, key_digest
from gateway.parts.access.authenticator import Callers
from gateway.parts.access.config import TenantConfig
from gateway.parts.measures import feedback
from gateway.parts.metrics.metrics import PrometheusMetrics
from gateway.parts.routes.part import cold_routes
from gateway.request.load_shedding import LoadShedder
from gateway.telemetry.sink import Telemetry
from tests.gateway.telemetry.requests_made import escalated
from tests.support.store import UNHURRIED, LocalStore, local_store

ACME = {"authorization": "Bearer acme-key"}
OTHER = {"authorization": "Bearer other-key"}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStore]:
    with local_store() as running:
        yield running


@pytest.fixture
async def store(server: LocalStore) -> AsyncIterator[RedisStore]:
    """A store that holds one request of the tenant acme, `req-1`."""
    opened = RedisStore.from_url(server.url, slack=UNHURRIED)
    await opened.delete("tierline:traces")
    for stream in (
        feedback.STREAM,
        *(f"{{{feedback.STREAM}}}:of:{name}" for name in ("acme", "loud", "alone", "quiet")),
    ):
        await opened.delete(stream)
    telemetry = Telemetry(opened, keep=100, exporter=None, metrics=PrometheusMetrics())
    telemetry.start()
    telemetry.record(*escalated())
    await telemetry.aclose()
    yield opened
    await opened.aclose()


def _client(store: Any, *, prompts: bool = False) -> httpx2.AsyncClient:
    tenants = {name: TenantConfig(key_digests=(key_digest(f"{name}-key".encode()),)) for name in ("acme", "other")}
    steps = SimpleNamespace(
        store=store,
        gate=LoadShedder(10),
        authenticator=Callers(tenants),
        deployment=SimpleNamespace(telemetry=TelemetryConfig(prompts=prompts), limits=Limits(), keyless=False),
        guard=SimpleNamespace(active=False),
        client_apis=(),
        telemetry=Telemetry(store, keep=0, exporter=None, metrics=PrometheusMetrics()),
    )
    api = cold_routes(cast("Any", steps))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api), base_url="http://test")


async def _said(store: Any, body: Any, headers: dict[str, str] = ACME, **options: Any) -> httpx2.Response:
    async with _client(store, **options) as client:
        return await client.post("/v1/feedback", json=body, headers=headers)


async def _kept(store: RedisStore) -> feedback.Feedback:
    return (await feedback.feedback_by_request(store))[("acme", "req-1")]


async def test_feedback_is_kept_with_its_request(store: RedisStore) -> None:
    """A score, and a plain right or wrong, are kept under the request and its surface; the last word counts."""
    reply = await _said(store, {"request_id": "req-1", "score": 0.25})
    assert (reply.status_code, reply.json()) == (200, {"object": "feedback", "request_id": "req-1", "score": 0.25})
    kept = await _kept(store)
    assert (kept.surface, kept.score) == ("chat", 0.25)
    await _said(store, {"request_id": "req-1", "correct": True})
    assert (await _kept(store)).score == 1.0


@pytest.mark.parametrize(("prompts", "kept"), [(True, "wrong year"), (False, None)])
async def test_a_comment_is_kept_where_prompts_are(store: RedisStore, prompts: bool, kept: str | None) -> None:
    """What people write may be as private as their prompts, and is treated like these."""
    body = {"request_id": "req-1", "correct": False, "comment": "wrong year"}
    assert (await _said(store, body, prompts=prompts)).status_code == 200
    assert (await _kept(store)).comment == kept


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ([], "invalid_type", None),
        ({"score": 1}, "missing_required_parameter", "request_id"),
        ({"request_id": 7, "score": 1}, "invalid_type", "request_id"),
        ({"request_id": "", "score": 1}, "unsupported_value", "request_id"),
        ({"request_id": "req-1"}, "missing_required_parameter", "score"),
        ({"request_id": "req-1", "score": 1, "correct": True}, "unsupported_value", "correct"),
        ({"request_id": "req-1", "score": True}, "invalid_type", "score"),
        ({"request_id": "req-1", "score": 1.5}, "unsupported_value", "score"),
        ({"request_id": "req-1", "correct": 1}, "invalid_type", "correct"),
        ({"request_id": "req-1", "score": 1, "comment": 5}, "invalid_type", "comment"),
        ({"request_id": "req-1", "score": 1, "comment": "x" * 501}, "unsupported_value", "comment"),
        ({"request_id": "req-1", "score": 1, "rating": 5}, "unsupported_value", "rating"),
    ],
)
async def test_a_bad_body_is_refused(store: RedisStore, body: Any, code: str, param: str | None) -> None:
    """Each fault is a 400 in the envelope, with a code and what it is about, and nothing is kept."""
    reply = await _said(store, body)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["code"], error["param"]) == (
        400, "invalid_request_error", code, param,
    )  # fmt: skip
    assert await feedback.feedback_by_request(store) == {}


async def test_a_large_body_is_refused(store: RedisStore) -> None:
    """Four kilobytes are enough for any feedback."""
    reply = await _said(store, {"request_id": "req-1", "score": 1, "comment": "x" * 5000})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("request_id", "headers", "status", "code"),
    [
        ("req-unknown", ACME, 404, "request_not_found"),
        ("req-1", OTHER, 404, "request_not_found"),
        ("req-1", {}, 401, "invalid_api_key"),
    ],
)
async def test_a_tenant_speaks_of_its_own(
    store: RedisStore, request_id: str, headers: dict[str, str], status: int, code: str
) -> None:
    """Another tenant's request is as unknown as one that never was, and without a key nobody speaks."""
    reply = await _said(store, {"request_id": request_id, "score": 1}, headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


async def test_without_a_store_it_is_said() -> None:
    """Feedback that cannot be kept is not pretended to be: 503, and when to come again."""
    reply = await _said(NoStore(), {"request_id": "req-1", "score": 1})
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")


async def test_nobody_rates_away_what_others_said(store: RedisStore) -> None:
    """Once the stream is full, a tenant that has half of it makes room by its own oldest ratings."""

    def rating(tenant: str, number: int) -> feedback.Feedback:
        return feedback.Feedback(f"req-{number}", tenant, "chat", 1.0, None, 1.0)

    await store.apply([feedback.append(rating("quiet", number), 10) for number in range(3)])
    await store.apply([feedback.append(rating("loud", number), 10) for number in range(300)])
    kept = await feedback.feedback_by_request(store)
    assert {key for key in kept if key[0] == "quiet"} == {("quiet", f"req-{number}") for number in range(3)}
    assert {key for key in kept if key[0] == "loud"} == {("loud", f"req-{number}") for number in range(293, 300)}


async def test_one_tenant_alone_has_all_of_the_room(store: RedisStore) -> None:
    """Its latest ratings stay, and what it rated before the room was shared goes with the rest."""
    ratings = [feedback.Feedback(f"req-{number}", "alone", "chat", 1.0, None, 1.0) for number in range(300)]
    await store.apply([Append(feedback.STREAM, ratings[0].encode(), 10)])
    await store.apply([feedback.append(rating, 10) for rating in ratings[1:]])
    kept = await feedback.feedback_by_request(store)
    assert ("alone", "req-299") in kept and ("alone", "req-291") in kept and len(kept) <= 11
