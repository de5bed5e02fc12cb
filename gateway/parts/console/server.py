"""Serve the console with uvicorn, on one archive, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.config.addresses import is_loopback, open_store
from gateway.config.environment import LEAST_KEY, BadSecret, secret_from_env
from gateway.parts.access.keys.identities import Identities
from gateway.parts.access.pages.login import Login
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.config import ConsoleConfig
from gateway.parts.console.gateway_client import GatewayClient
from gateway.parts.console.page import PolicyPlaces
from gateway.parts.ledger.live import LiveArchive
from gateway.request.load_shedding import LoadShedder
from gateway.server.connection_limits import ConnectionLimits
from gateway.server.http_protocol import HttpProtocol

_SLACK = 10.0
"""The time limits of the gateway's own operations are for its event loop; pages may wait longer."""
_MOST_CONNECTIONS = 512
_SILENT_S = 10.0
"""How long a new connection may be silent; see `gateway.server.connection_limits` for the other limits."""
_CLOSE_S = 1
"""Seconds that pages which are being made have at the end."""


class CannotServeConsole(Exception):
    """The console cannot be served as configured; the message says what to change."""


async def serve_console(places: PolicyPlaces, config: ConsoleConfig, environ: Mapping[str, str]) -> None:
    """Serve the ledger, the store and the policies of `places` until a signal. Raises CannotServeConsole."""
    deployment = places.deployment
    identities = Identities.of(deployment)
    access = access_of(config, environ, identities)
    login = login_of(config, environ, identities)
    gateway = gateway_of(config, environ)
    store = open_store(places.store_url, slack=_SLACK)
    archive = LiveArchive(places.ledger, store)
    archive.start()
    scripted = deployment.scripted_models
    app = ConsoleApp(archive, store, places, access, scripted=scripted, gateway=gateway, login=login).asgi()
    stopping = asyncio.Event()
    server = _UntilSignal(
        uvicorn.Config(
            _EndingStreams(app, stopping),
            config.host,
            config.port,
            log_level="warning",
            access_log=False,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_CLOSE_S,
        ),
        stopping,
    )
    logging.getLogger("uvicorn.error").addHandler(logging.StreamHandler(sys.stderr))
    try:
        await server.serve([server.config.bind_socket()])
    finally:
        if gateway is not None:
            await gateway.aclose()
        await archive.aclose()
        await store.aclose()


def access_of(config: ConsoleConfig, environ: Mapping[str, str], identities: Identities | None = None) -> ConsoleAccess:
    """Return who may see a console with this config. Raises CannotServeConsole if that would be everybody."""
    keys: dict[str, str] = {}
    named = (("viewer", config.viewer_key_env), ("editor", config.key_env), ("admin", config.admin_key_env))
    for role, name in named:
        if name is None:
            continue
        try:
            key = secret_from_env(name, environ, LEAST_KEY)
        except BadSecret as error:
            raise CannotServeConsole(f"console: {error}") from None
        if key is None:
            raise CannotServeConsole(f"console: {name} is not set; set it to the key, or leave it out of the config")
        keys[role] = key.get_secret_value()
    if not keys and config.login is None and not is_loopback(config.host):
        raise CannotServeConsole(
            f"console: it would be open to everybody who reaches {config.host}. Name a variable with a key: "
            "`console: {key_env: TIERLINE_CONSOLE_KEY}`, or let it listen on 127.0.0.1"
        )
    return ConsoleAccess.by_roles(keys, frozenset(config.hosts), identities, login=config.login is not None)


def login_of(config: ConsoleConfig, environ: Mapping[str, str], identities: Identities) -> Login | None:
    """Return how people sign in by their identity provider; None for by keys alone. Raises CannotServeConsole."""
    login = config.login
    if login is None:
        return None
    if login.client_secret_env is not None:
        try:
            secret = secret_from_env(login.client_secret_env, environ)
        except BadSecret as error:
            raise CannotServeConsole(f"console.login: {error}") from None
        if secret is None:
            raise CannotServeConsole(f"console.login: {login.client_secret_env} is not set; set it, or leave it out")
        login = login.model_copy(update={"client_secret": secret})
    return Login(login, identities)


def gateway_of(config: ConsoleConfig, environ: Mapping[str, str]) -> GatewayClient | None:
    """Return the client of the gateway that the config names; None for none. Raises CannotServeConsole."""
    if config.gateway is None:
        return None
    name = config.gateway_key_env
    if name is not None and not environ.get(name):
        raise CannotServeConsole(f"console: {name} is not set; set it to the admin's key, or leave it out")
    return GatewayClient(config.gateway, environ[name] if name else "")


class _UntilSignal(uvicorn.Server):
    """uvicorn's server, whose end by a signal is a good one: it does not send itself that signal again."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        """Set `stopping` on the first signal."""
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, at once on a second signal."""
        self._stopping.set()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM stop the server."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and then print the address."""
        self._limits = connections = ConnectionLimits(_MOST_CONNECTIONS, _SILENT_S)
        # The connections' protocol reads these. Without a start, the gate measures nothing and refuses nobody.
        self.lifespan.state.update(gate=LoadShedder(_MOST_CONNECTIONS), connections=connections)
        connections.start()
        await super().startup(sockets)
        if not sockets:
            return
        host, port = sockets[0].getsockname()[:2]
        sys.stdout.write(f"The console is at http://{f'[{host}]' if ':' in host else host}:{port}\n")
        sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and stop looking for slow and idle connections."""
        await super().shutdown(sockets)
        self._limits.stop()


class _EndingStreams:
    """Tell every request that its client has left once the server stops: streams of updates never end by themselves.

    What is left open then is ended for the client.
    """

    def __init__(self, app: ASGIApp, stopping: asyncio.Event) -> None:
        self._app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_or_end() -> Message:
            asked, stopping = asyncio.ensure_future(receive()), asyncio.ensure_future(self._stopping.wait())
            try:
                await asyncio.wait((asked, stopping), return_when=asyncio.FIRST_COMPLETED)
                return asked.result() if asked.done() else {"type": "http.disconnect"}
            finally:
                asked.cancel()
                stopping.cancel()

        open_ = False

        async def note(message: Message) -> None:
            nonlocal open_
            open_ = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        await self._app(scope, receive_or_end, note)
        if open_:
            await send({"type": "http.response.body"})
