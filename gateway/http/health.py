"""Serve `/healthz` (alive) and `/readyz` (ready, and what is degraded); neither calls a model.

Whoever watches a gateway asks these every second, so they are served without FastAPI, which stays unloaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.parts.standard import part_missing_for_path
from gateway.request.options import known_headers
from gateway.seams import metrics_routes, readiness

if TYPE_CHECKING:
    from gateway.steps import Steps


async def root(_: Request) -> JSONResponse:
    """Say what is here, for clients that ask for the base URL to see whether anybody answers."""
    documents = {} if part_missing_for_path("/docs") else {"description": "/docs"}
    return JSONResponse({"service": "tierline", "api": "/v1", "models": "/v1/models"} | documents)


async def healthz(_: Request) -> JSONResponse:
    """Report that this process answers requests."""
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> JSONResponse:
    """Answer 503 while the process starts or stops and if no tier is configured, else 200, with what is degraded.

    Tiers that fail or ask for a pause do not cause a 503: all replicas share the same backends, so a load balancer
    would drop every replica, and with them the cached answers and the errors with Retry-After.
    """
    steps: Steps = request.app.state.steps
    report = readiness(steps)
    status_code = 503 if report["status"] in ("unavailable", "draining") else 200
    if not await steps.authenticator.is_operator(known_headers(request.scope["headers"])):
        report = {"status": report["status"]}
    return JSONResponse(report, status_code=status_code)


def probes() -> list[Route]:
    """Return the routes for whoever watches the gateway."""
    answered = {"/": root, "/healthz": healthz, "/health": healthz, "/readyz": readyz}
    return [*(Route(path, endpoint) for path, endpoint in answered.items()), *metrics_routes()]
