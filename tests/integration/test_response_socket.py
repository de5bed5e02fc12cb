"""The Responses API over WebSockets, with the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses.responses_server_event import ResponseWsCompleted
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.gateway import CHAT, Gateway, serve
from tests.support.response_events import CLASSES, check_response
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream

Json = dict[str, Any]


def url_of(gateway: Gateway) -> str:
    return gateway.url.replace("http", "ws") + "/responses"


async def answer(socket: Any, **body: Any) -> list[Json]:
    """The events of one answer, each checked by the SDK's type."""
    await socket.send(json.dumps({"type": "response.create", "model": "chat", **body}))
    events: list[Json] = []
    while not events or events[-1]["type"] not in ("response.completed", "response.failed", "error"):
        events.append(json.loads(await asyncio.wait_for(socket.recv(), 20)))
    return events


async def test_the_sdk_holds_a_conversation(cached_gateway: Gateway, local_upstream: Upstream) -> None:
    """The events are those of a stream; each turn goes on from the one before."""
    local_upstream.queue(Reply(text="one two three"), Reply(text="four"))
    async with (
        openai.AsyncOpenAI(base_url=cached_gateway.url, api_key="any") as client,
        client.responses.connect() as connection,
        asyncio.timeout(30),
    ):
        await connection.response.create(model="chat", input="Count.")
        first: list[Any] = []
        async for event in connection:
            first.append(event)
            if event.type in ("response.completed", "error"):
                break
        assert [event.sequence_number for event in first] == list(range(len(first)))
        assert first[-1].response.output_text == "one two three"
        check_response(first[-1].response.to_dict(), "completed")
        await connection.response.create(model="chat", input="Go on.", previous_response_id=first[-1].response.id)
        async for event in connection:
            if event.type in ("response.completed", "error"):
                break
        assert isinstance(event, ResponseWsCompleted) and event.response.output_text == "four"
    sent = local_upstream.requests[-1].body["messages"]
    assert [one["content"] for one in sent] == ["Count.", "one two three", "Go on."]


async def test_what_is_not_kept_is_known_to_its_connection(cached_gateway: Gateway, local_upstream: Upstream) -> None:
    """Only the last response, and nowhere else; the cache and the escalation are those of every request."""
    local_upstream.queue(Reply(text="one"), Reply(text="two"))
    async with connect(url_of(cached_gateway)) as socket, connect(url_of(cached_gateway)) as other:
        events = await answer(socket, input="a", store=False)
        for event in events:
            CLASSES[event["type"]].model_validate(event)
        first = events[-1]["response"]["id"]
        lost = (await answer(other, input="b", store=False, previous_response_id=first))[-1]
        assert (lost["status"], lost["error"]["code"]) == (400, "previous_response_not_found")
        second = (await answer(socket, input="b", store=False, previous_response_id=first))[-1]["response"]
        assert second["output"][0]["content"][0]["text"] == "two"
        assert [one["content"] for one in local_upstream.requests[-1].body["messages"]] == ["a", "one", "b"]
        assert (await answer(socket, input="c", previous_response_id=first))[-1]["type"] == "error"
        again = (await answer(other, input="a", store=False))[-1]["response"]
        assert again["output"][0]["content"][0]["text"] == "one"
    assert len(local_upstream.requests) == 2


async def test_errors_are_events_and_the_connection_goes_on(cached_gateway: Gateway) -> None:
    async with connect(url_of(cached_gateway)) as socket:
        for body, status, code, param in (
            ({"input": 5}, 400, "invalid_type", "input"),
            ({"input": "a", "model": "none"}, 404, "model_not_found", "model"),
            ({"input": "a", "type": "response.steer"}, 400, "unsupported_value", "type"),
            ({"input": "a", "background": True}, 400, "unsupported_value", "background"),
            ({"input": 5, "generate": False}, 400, "invalid_type", "input"),
            ({"model": "none", "generate": False}, 404, "model_not_found", "model"),
        ):
            (event,) = await answer(socket, **body)
            error = event["error"]
            assert (event["type"], event["status"], error["code"], error["param"]) == ("error", status, code, param)
        await socket.send("{")
        assert json.loads(await socket.recv())["error"]["code"] == "invalid_json"
        assert (await answer(socket, input="a", generate=True))[-1]["type"] == "response.completed"


@pytest.mark.parametrize("store", [False, True], ids=["connection", "store"])
async def test_a_response_is_prepared_without_an_answer(
    cached_gateway: Gateway, local_upstream: Upstream, store: bool
) -> None:
    """`generate: false` calls no model, also in the middle of a connection; the next request goes on from it."""
    async with connect(url_of(cached_gateway)) as socket:
        events = await answer(socket, input=f"first {store}", instructions="Be brief.", store=store, generate=False)
        assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
        for event in events:
            CLASSES[event["type"]].model_validate(event)
        prepared = events[-1]["response"]
        assert (prepared["output"], prepared["usage"]["total_tokens"]) == ([], 0)
        assert not local_upstream.requests
        local_upstream.queue(Reply(text="one"), Reply(text="two"))
        body = {"store": store, "previous_response_id": prepared["id"]}
        first = (await answer(socket, input="second", **body))[-1]["response"]
        assert first["output"][0]["content"][0]["text"] == "one"
        assert [one["content"] for one in local_upstream.requests[-1].body["messages"]] == [f"first {store}", "second"]
        again = (await answer(socket, input="third", store=store, previous_response_id=first["id"], generate=False))[-1]
        assert again["response"]["output"] == []
        last = (await answer(socket, input=[], store=store, previous_response_id=again["response"]["id"]))[-1]
        assert last["response"]["output"][0]["content"][0]["text"] == "two"
        sent = [one["content"] for one in local_upstream.requests[-1].body["messages"]]
        assert sent == [f"first {store}", "second", "one", "third"]
        empty = (await answer(socket, store=store, input=[], generate=False))[-1]["response"]["id"]
        local_upstream.queue(Reply(text="three"))
        end = (await answer(socket, input=f"a new one {store}", store=store, previous_response_id=empty))[-1]
        assert end["response"]["output"][0]["content"][0]["text"] == "three"
        assert len(local_upstream.requests[-1].body["messages"]) == 1


async def test_a_request_that_failed_makes_its_connection_forget(cached_gateway: Gateway) -> None:
    """What it went on from has to be sent again, whatever was wrong; a failure elsewhere changes nothing."""
    async with connect(url_of(cached_gateway)) as socket:
        for fault in ({"input": 5}, {"input": "a", "tool_choice": 7}, {"input": "a", "model": "none"}):
            first = (await answer(socket, input=f"a {fault}", store=False))[-1]["response"]["id"]
            assert (await answer(socket, input=5, store=False))[-1]["type"] == "error"
            assert (await answer(socket, **{"store": False, **fault}, previous_response_id=first))[-1][
                "type"
            ] == "error"
            lost = (await answer(socket, input="b", store=False, previous_response_id=first))[-1]
            assert lost["error"]["code"] == "previous_response_not_found"


async def test_requests_of_a_connection_wait_for_their_turn(cached_gateway: Gateway, local_upstream: Upstream) -> None:
    local_upstream.queue(Reply(text="first slow", between_s=0.2), Reply(text="second"))
    async with connect(url_of(cached_gateway)) as socket:
        for text in ("wait for me", "and for me"):
            await socket.send(json.dumps({"type": "response.create", "model": "chat", "input": text}))
        ends: list[str] = []
        while len(ends) < 2:
            event = json.loads(await asyncio.wait_for(socket.recv(), 20))
            if event["type"] == "response.completed":
                ends.append(event["response"]["output"][0]["content"][0]["text"])
        assert ends == ["first slow", "second"]


async def test_a_client_that_leaves_ends_its_request(cached_gateway: Gateway, local_upstream: Upstream) -> None:
    local_upstream.queue(Reply(text="never", before_headers_s=60))
    async with connect(url_of(cached_gateway)) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": "chat", "input": "a"}))
        await asyncio.to_thread(local_upstream.wait_for, 1)
    async with asyncio.timeout(5):
        while local_upstream.in_flight:
            await asyncio.sleep(0.01)


async def test_keys_pages_and_sizes_are_checked(tmp_path: Path, local_upstream: Upstream) -> None:
    """As at every path: a key where tenants have them, no other site's page without, and bodies within their limit."""
    settings = {"tenants": {"a": {"key_env": "KEY_A"}}, "limits": {"body": "20KiB"}}
    with serve(tmp_path, local_upstream.url, settings=settings, env={"KEY_A": "key-of-a"}) as gateway:
        with pytest.raises(InvalidStatus) as refused:
            await connect(url_of(gateway)).__aenter__()
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"
        async with connect(url_of(gateway), additional_headers={"authorization": "Bearer key-of-a"}) as socket:
            assert (await answer(socket, input="a"))[-1]["type"] == "response.completed"
            await socket.send(json.dumps({"type": "response.create", "input": "x" * 30_000}))
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


async def test_a_page_of_another_site_is_refused(gateway: Gateway) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(url_of(gateway), origin="https://elsewhere.example").__aenter__()  # type: ignore[arg-type]
    assert refused.value.response.status_code == 403


async def test_a_gateway_that_stops_finishes_the_answer(
    tmp_path: Path, store: LocalStore, local_upstream: Upstream
) -> None:
    """Then it closes the connection, as one does that is to be opened again elsewhere."""
    local_upstream.queue(Reply(text="one two three four", between_s=0.3))
    with serve(tmp_path, local_upstream.url, store_url=store.url, policies={"chat": CHAT}) as gateway:
        async with connect(url_of(gateway)) as socket, connect(url_of(gateway)) as idle:
            asking = asyncio.create_task(answer(socket, input="a"))
            await asyncio.to_thread(local_upstream.wait_for, 1)
            gateway.process.send_signal(signal.SIGINT)
            assert (await asking)[-1]["type"] == "response.completed"
            for one in (socket, idle):
                assert json.loads(await one.recv())["error"]["code"] == "draining"
                with pytest.raises(ConnectionClosed) as closed:
                    await one.recv()
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
        assert gateway.process.wait(10) == 0
