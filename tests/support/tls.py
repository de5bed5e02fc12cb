"""Serves HTTPS on loopback with a certificate that nobody has signed: what a verifying client must refuse."""

from __future__ import annotations

import asyncio
import shutil
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
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(_REPLY)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    server = TlsServer(f"https://localhost:{listening.sockets[0].getsockname()[1]}/v1", certificate)
    async with listening:
        yield server
