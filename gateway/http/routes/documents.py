"""Serve the API's own description: `/openapi.json`, and `/docs`, which shows it without any other host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.http.docs_page import HEADERS, STYLE, page
from gateway.http.openapi import document

PATHS: Final = ("/openapi.json", "/docs", "/docs.css")
Served = Sequence[tuple[str, str]]


def document_routes(title: str, served: Served, *, keyed: bool) -> list[Route]:
    """Return the routes that describe the `served` (method, path) pairs, and themselves."""
    whole = document(title, [*served, *(("GET", path) for path in PATHS)], keyed=keyed)
    data, html = orjson.dumps(whole), page(whole).encode()

    async def openapi(_: Request) -> Response:
        return Response(data, media_type="application/json")

    async def docs(_: Request) -> Response:
        return Response(html, headers=HEADERS, media_type="text/html")

    async def style(_: Request) -> Response:
        return Response(STYLE, headers=HEADERS, media_type="text/css")

    return [Route(path, answer) for path, answer in zip(PATHS, (openapi, docs, style), strict=True)]


def served_by(routes: Sequence[Route]) -> list[tuple[str, str]]:
    """Return the (method, path) pairs of Starlette's routes; HEAD, which every GET has too, is left out."""
    return [
        (method, route.path)
        for route in routes
        for method in sorted(route.methods or ())
        if method not in ("HEAD", "OPTIONS")
    ]
