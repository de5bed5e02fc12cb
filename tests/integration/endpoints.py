"""A gateway with services behind it, for the tests of the endpoints that are no chat."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import redis

from tests.support.account import Account
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.store import LocalStore
from tests.support.strict_decisions import StrictDecisions
from tests.support.wait import until

REMOTE = CHAT.replace("surface: chat", "surface: remote").replace("[chat, gpt-4o-mini]", "[]")
ENDPOINTS = """
endpoints:
  embeddings: {service: account, model: text-embedding-3-small}
  completions: account
  moderations: account
  audio: account
  images: account
  files: account
  batches: account
  other: {/v1/rerank: account, /v1/rerank/secret: unset, /v1/decisions: judge, /v1/messages/batches: claude}
"""


@dataclass(frozen=True)
class EndpointsSetup:
    """The gateway and what is behind it. Surface `chat` names no service, surface `remote` all of them."""

    gateway: Gateway
    account: Account
    store: LocalStore
    judge: StrictDecisions

    def record(self, request_id: str) -> dict[str, Any]:
        """The record of a request, once it is in the store."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            with redis.Redis.from_url(self.store.url) as client:
                entries = client.xrange("tierline:traces")
            records = [orjson.loads(value) for _, fields in entries for value in fields.values() if value[:1] == b"{"]
            found.extend(one for one in records if one["ledger"]["request_id"] == request_id)
            return bool(found)

        until(look, 5, f"the record of {request_id}")
        assert len(found) == 1, "one record a request"
        return found[0]


@contextmanager
def setup(folder: Path, local: str, account: Account, store: LocalStore, **settings: Any) -> Iterator[EndpointsSetup]:
    """Start the gateway; `settings` are further keys of the config."""
    service = {
        "base_url": account.url,
        "key_env": "HOSTED_KEY",
        "prices": {"text-embedding-3-small": 20},
        "models": {"tts": "tts-1-hd"},
        "idle_timeout": "5s",
        "max_request": "32MiB",
    }
    with StrictDecisions() as judge:
        services = {
            "account": service,
            "unset": {"base_url": account.url, "key_env": "NO_SUCH"},
            "judge": {"base_url": judge.url, "key_env": "HOSTED_KEY"},
            "claude": {"kind": "anthropic", "base_url": account.url, "key_env": "HOSTED_KEY"},
        }
        settings = {"services": services} | settings
        policies = {"chat": CHAT, "remote": REMOTE + ENDPOINTS}
        with serve(folder, local, local, store_url=store.url, policies=policies, settings=settings) as gateway:
            yield EndpointsSetup(gateway, account, store, judge)
