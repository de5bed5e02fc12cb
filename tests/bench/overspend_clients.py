"""Send the requests of a way to overspend, over HTTP or a WebSocket, and leave before the answer where it says so."""

from __future__ import annotations

import http.client
import itertools
import json
import select
import time
from contextlib import suppress
from typing import Any, Final

from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import connect

from tests.bench.overspend_provider import LEFT_ANSWER_S, CountingProvider
from tests.bench.overspend_ways import Way, said

_numbers = itertools.count(1)
_PATIENCE_S: Final = 20.0
_ENDS: Final = ("response.completed", "response.failed", "error")


def try_request(origin: str, provider: CountingProvider, way: Way, key: str, *, leaves: bool) -> str:
    """Send a request, and return the error's code, the status, or `left`."""
    number = next(_numbers)
    raw, headers = _request(way, number, key)
    return (_over_socket if way.socket else _over_http)(origin, provider, way, number, raw, headers, leaves)


def _request(way: Way, number: int, key: str) -> tuple[bytes, dict[str, str]]:
    headers = {"authorization": f"Bearer {key}", "x-tierline-cache": "no-cache, no-store"}
    headers |= {"x-tierline-session": "s1", **(way.headers or {})}
    mark = f"way:{way.name};number:{number};"
    if way.path.startswith("/v1/audio"):
        part = '--b\r\ncontent-disposition: form-data; name="{}"{}\r\n\r\n'
        sound = part.format("file", '; filename="a.wav"') + "x" * 3 * (1 << 20)
        body = part.format("model", "") + "w\r\n" + part.format("prompt", "") + mark + "\r\n" + sound + "\r\n--b--\r\n"
        return body.encode(), headers | {
            "content-type": "multipart/form-data; boundary=b",
            "x-tierline-surface": "chat",
        }
    asked: dict[str, Any] = {"model": "chat", "messages": said("MARK"), **(way.more or {})}
    asked |= {"type": "response.create"} if way.socket else {}
    raw = json.dumps({name: value for name, value in asked.items() if value is not None})
    raw = raw.replace("MARK", mark).replace("NUMBER", f"user-{number}")
    if way.path == "/v1/batches":
        headers["x-tierline-surface"] = "chat"
    return raw.encode(), headers | {"content-type": "application/json"}


def _is_to_leave(provider: CountingProvider, number: int) -> bool:
    """Return whether the answer to a request comes within 50 ms."""
    here = provider.arrived.get(str(number))
    return here is not None and time.monotonic() > here + LEFT_ANSWER_S - 0.05


def _over_http(
    origin: str, provider: CountingProvider, way: Way, number: int, raw: bytes, headers: dict[str, str], leaves: bool
) -> str:
    connection = http.client.HTTPConnection(origin.removeprefix("http://"), timeout=_PATIENCE_S)
    try:
        connection.request("POST", way.path, raw, headers)
        while leaves and not select.select([connection.sock], [], [], 0.01)[0]:
            if _is_to_leave(provider, number):
                return "left"
        reply = connection.getresponse()
        text, status = reply.read(), reply.status
    except (OSError, http.client.HTTPException):
        return "no answer"
    finally:
        connection.close()
    return _code(text, status)


def _code(text: bytes, status: int) -> str:
    """Return the code, or the type, of the error in a reply; its status where it holds none."""
    with suppress(ValueError):
        error = json.loads(text).get("error") or {}
        return str(error.get("code") or error.get("type") or status)
    return str(status)


def _over_socket(
    origin: str, provider: CountingProvider, way: Way, number: int, raw: bytes, headers: dict[str, str], leaves: bool
) -> str:
    url, sent = f"{origin.replace('http', 'ws')}{way.path}", {**headers}
    del sent["content-type"]
    try:
        with connect(url, additional_headers=sent, open_timeout=_PATIENCE_S, close_timeout=0.1) as socket:
            socket.send(raw.decode())
            event: dict[str, Any] = {}
            while event.get("type") not in _ENDS:
                try:
                    event = json.loads(socket.recv(0.01 if leaves else _PATIENCE_S))
                except TimeoutError:
                    if not leaves:
                        return "no answer"
                if leaves and event.get("type") != "error" and _is_to_leave(provider, number):
                    return "left"
    except InvalidStatus as refused:
        return _code(refused.response.body or b"", refused.response.status_code)
    except (OSError, WebSocketException):
        return "no answer"
    error = event.get("error") or {}
    return str(error.get("code") or event["type"])
