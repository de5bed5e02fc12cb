"""Build the context of a request that no HTTP server has received."""

from __future__ import annotations

import time
from typing import Any

from gateway.request.context import Client, RequestContext
from gateway.request.options import RequestOptions
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace
from policies.model import Policy
from routing.features import features_of


def streamed_request(client: Client, **policy: Any) -> RequestContext:
    """Return a request for a stream, with 10 s until its deadline; `policy` adds sections to a policy of one tier."""
    body = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    raw = {"surface": "chat", "version": "0" * 7, "slo": {"deadline": "10s"}, "tiers": ["a"], **policy}
    raw["route"] = {"start": {"a": "otherwise"}}
    return RequestContext(
        request_id="r",
        tenant="t",
        policy=Policy.model_validate(raw),
        body=body,
        features=features_of(body),
        options=RequestOptions(),
        clamp=None,
        own_limit=False,
        deadline=time.monotonic() + 10,
        trace=Trace(names.REQUEST),
        ledger=Ledger("r"),
        client=client,
    )
