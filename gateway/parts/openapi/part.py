"""Provide the seam `openapi` (`gateway.seams`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from gateway.parts.openapi.document import document, failure
from gateway.parts.openapi.page import HEADERS, STYLE, docs_page
from gateway.parts.openapi.schemas import Error
from gateway.steps import Described


def common_replies() -> Mapping[int | str, dict[str, Any]]:
    """Return the errors that every route may give."""
    return failure(Error)


def add_documents(api: FastAPI, title: str, beside: Sequence[Described], *, keyed: bool) -> None:
    """Serve `/openapi.json`, and `/docs`, which shows it without any other host."""
    whole = document(title, beside, api.routes, keyed=keyed)

    def serve(path: str, content: bytes, media_type: str) -> None:
        async def answer(_: Request) -> Response:
            return Response(content, media_type=media_type, headers=HEADERS)

        api.add_route(path, answer)

    serve("/openapi.json", orjson.dumps(whole), "application/json")
    serve("/docs", docs_page(whole), "text/html")
    serve("/docs.css", STYLE, "text/css")
