"""Give FastAPI's routes what the worker has for clients of these APIs, and whose a request is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from gateway.caller import Caller
from gateway.http.api_route import CallerOf, Served
from gateway.parts.apis.clients import Clients
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace


async def _clients(request: Request) -> Clients:
    return next(api for api in request.app.state.steps.client_apis if isinstance(api, Clients))


async def _counted(steps: Served, caller: CallerOf) -> AsyncIterator[Caller]:
    """Yield who asks, once the request is counted against their limits. Raises ApiError."""
    trace, ledger = Trace(names.REQUEST), Ledger("", caller.tenant)
    hold = None if steps.limits is None else steps.limits.hold(caller, trace, ledger)
    if hold is not None:
        await hold.enter(0)
    try:
        yield caller
    finally:
        if hold is not None:
            hold.end()


async def _owner(caller: CallerOf) -> str:
    return caller.owner


OfWorker = Annotated[Clients, Depends(_clients)]
"""What the worker keeps for clients, and what it calls for them."""
Owner = Annotated[str, Depends(_owner)]
"""The team, within its tenant, whose key a request has; the tenant where there is none: whose what is kept is."""
CountedCaller = Annotated[Caller, Depends(_counted)]
"""Who sends a request that counts against the limits of its owners: what calls a backend does."""
