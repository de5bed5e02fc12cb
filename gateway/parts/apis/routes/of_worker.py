"""Give FastAPI's routes what the worker has for clients of these APIs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from gateway.parts.apis.clients import Clients


async def _clients(request: Request) -> Clients:
    return next(api for api in request.app.state.steps.client_apis if isinstance(api, Clients))


OfWorker = Annotated[Clients, Depends(_clients)]
"""What the worker keeps for clients, and what it calls for them."""
