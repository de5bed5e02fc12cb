"""Send a GET request to a child on this machine in a thread, with the standard library, which imports quickly."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any

_TIMEOUT_S = 1.0


async def get(host: str, port: int, path: str) -> tuple[int, Any]:
    """Return the status and the parsed JSON body (None if not JSON); status 0 without a reply within one second."""
    return await asyncio.to_thread(_get, host, port, path)


def _get(host: str, port: int, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()
    try:
        return response.status, json.loads(body)
    except ValueError:
        return response.status, None
