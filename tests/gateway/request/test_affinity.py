"""What is known of one request on arrival."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.request.context import Client, RequestContext
from tests.support.context import streamed_request

MESSAGES: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


def asked(tenant: str, *further: Any) -> RequestContext:
    """A turn of one conversation of a tenant."""
    body = {"model": "chat", "messages": [*MESSAGES, *further]}
    return replace(streamed_request(Client(None, 1.0)), tenant=tenant, body=body)


def test_affinity_is_of_the_tenant_and_of_the_conversations_beginning() -> None:
    """A conversation keeps its backend, and which one that is says nothing of another tenant's equal one."""
    turns = {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "and?"}
    assert asked("acme").affinity() == asked("acme", *turns).affinity()
    assert len({asked(f"tenant-{number}").affinity() for number in range(20)}) == 20
    other = {"model": "chat", "messages": [MESSAGES[0], {"role": "user", "content": "bye"}]}
    assert replace(asked("acme"), body=other).affinity() != asked("acme").affinity()
