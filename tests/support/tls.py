"""Serve TLS on loopback with a certificate that nobody has signed: by itself, or in front of a plain server."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@dataclass
class TlsServer:
    """`received` is what clients sent inside TLS, so nothing as long as none of them accepts the certificate."""

    url: str
    certificate: Path
    received: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def self_signed_server(folder: Path) -> AsyncIterator[TlsServer]:
    """A server with a self-signed certificate for `localhost`; skips the test where there is no openssl to make it."""
    certificate = make_certificate(folder)
    context = _server_context(certificate)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(_REPLY)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    server = TlsServer(f"https://localhost:{listening.sockets[0].getsockname()[1]}/v1", certificate)
    async with listening:
        yield server


def make_certificate(folder: Path) -> Path:
    """Make a self-signed certificate for `localhost`, its key in the same file; skip the test where openssl is not."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
    return certificate


def _server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


@asynccontextmanager
async def tls_front(certificate: Path, port: int) -> AsyncIterator[int]:
    """Pass every connection on to a plain server at `port`, without the TLS; yield the port that it listens on.

    Each connection is first made to that server, so that what hangs or is refused there does so here. Ends and resets
    are passed on too, in both directions.
    """
    context = _server_context(certificate)
    running: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except (OSError, ssl.SSLError):
            writer.transport.abort()
        finally:
            writer.close()

    async def serve(sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        writers: list[asyncio.StreamWriter] = []
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
            writers.append(to_server)
            from_client = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(from_client)
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=context)
            to_client = asyncio.StreamWriter(transport, protocol, from_client, loop)
            writers.append(to_client)
            await asyncio.gather(pump(from_client, to_server), pump(from_server, to_client))
        except (OSError, ssl.SSLError):
            pass  # the other side is told by what follows
        finally:
            for writer in writers:
                writer.transport.abort()
            if len(writers) < 2:
                sock.close()

    async def accept() -> None:
        while True:
            sock, _ = await asyncio.get_running_loop().sock_accept(listening)
            task = asyncio.create_task(serve(sock))
            running.add(task)
            task.add_done_callback(running.discard)

    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    listening.setblocking(False)
    accepting = asyncio.create_task(accept())
    try:
        yield listening.getsockname()[1]
    finally:
        tasks = [accepting, *running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listening.close()
