"""What backends have httpx2 for: a proxy of the config."""

from __future__ import annotations

import asyncio

from gateway.backends.httpx2_transport import Httpx2Transport


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
