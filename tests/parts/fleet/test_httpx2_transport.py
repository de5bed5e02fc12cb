"""What backends have httpx2 for: a proxy of the config, and HTTP/2."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, ClassVar

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded

from gateway.parts.fleet import httpx2_transport
from gateway.parts.fleet.httpx2_transport import Httpx2Transport
from tests.support.tls import make_certificate


async def test_a_call_goes_through_the_proxy_of_the_config() -> None:
    """A host that only the proxy knows is reached, and the proxy is asked for the whole URL."""
    asked: list[bytes] = []

    async def proxied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    proxy = await asyncio.start_server(proxied, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    transport = Httpx2Transport(
        "http://no-such-host.invalid/v1/chat/completions",
        max_in_flight=1,
        connect_timeout_s=2,
        max_reply=100,
        proxy=f"http://127.0.0.1:{port}",
    )
    async with proxy:
        response = await transport.send({"Content-Type": "application/json"}, b"{}")
        assert await response.read() == b"hi"
        response.close()
        await transport.aclose()
    assert asked == [b"POST http://no-such-host.invalid/v1/chat/completions HTTP/1.1"]


class Http2Server(asyncio.Protocol):
    """A server of HTTP/2 that answers each request when all that are awaited have come, as one connection can."""

    awaited = 2
    connections = 0
    open: ClassVar[list[tuple[Http2Server, int]]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).connections += 1
        self.transport: Any = transport
        self.http = H2Connection(H2Configuration(client_side=False))
        self.http.initiate_connection()
        self.transport.write(self.http.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self.http.receive_data(data):
            if isinstance(event, StreamEnded):
                self.open.append((self, event.stream_id))
        if len(self.open) == self.awaited:
            for server, stream in self.open:
                server.http.send_headers(stream, [(":status", "200"), ("x-stream", str(stream))])
                server.http.send_data(stream, b"hi", end_stream=True)
            self.open.clear()
        self.transport.write(self.http.data_to_send())


async def test_calls_share_a_connection_of_http2(tmp_path: Path) -> None:
    """Two at the same time, neither of which is answered before both have come."""
    certificate = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(["h2"])
    httpx2_transport.verifying_context_of(http2=True).load_verify_locations(certificate)
    server = await asyncio.get_running_loop().create_server(Http2Server, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    transport = Httpx2Transport(
        f"https://localhost:{port}/v1/x", max_in_flight=2, connect_timeout_s=2, max_reply=100, http2=True
    )
    async with server, asyncio.timeout(5):
        for _ in range(2):
            responses = await asyncio.gather(*(transport.send({"Content-Type": "a/b"}, b"{}") for _ in range(2)))
            assert [await response.read() for response in responses] == [b"hi", b"hi"]
            assert len({response.header("x-stream") for response in responses}) == 2
            for response in responses:
                response.close()
        await transport.aclose()
    assert Http2Server.connections == 1
