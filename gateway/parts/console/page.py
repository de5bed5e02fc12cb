"""What a view brings to the console: its pages, what can be done on them, and the errors that become a page.

A view is a module of `console.views` with a function `pages`, which yields a `Page` for each page and an `Action` for
each form or stream of updates. `console.app` lists the views; their order there is that of the navigation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import ApiError

if TYPE_CHECKING:
    from cache.store.base import Store
    from gateway.config.schema import Deployment
    from gateway.parts.console.gateway_client import GatewayClient
    from gateway.parts.console.records import Records
    from gateway.parts.console.render import Renderer
    from policies.loader import PolicySource


class PageError(ApiError):
    """A page that cannot be shown; the message says why, and what to do. Subclasses say the status and the title."""

    status = 400
    title: ClassVar[str] = "This cannot be shown"


class UnreadableRecords(PageError):
    """A query of a page that DuckDB refuses; the message is its own."""

    status, title = 500, "The ledger could not be read"


class BadQuery(PageError):
    """A URL whose query cannot be understood."""

    title = "This address is not one"


def whole_in(text: str) -> int | None:
    """Return a whole number of at most 15 digits, as addresses and forms have them; None for any other text."""
    return int(text) if text.isdecimal() and len(text) < 16 else None


@dataclass(frozen=True, slots=True)
class PolicyPlaces:
    """What the policies are checked against and planned with: the deployment, its policy folder, and the ledger's."""

    deployment: Deployment
    source: PolicySource
    ledger: Path
    config: Path | None
    store_url: str
    logs: Path | None = None
    """The folder of the logs of `tierline up`; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where views have their data from, and how they are rendered."""

    archive: Records
    store: Store
    places: PolicyPlaces
    render: Renderer
    gateway: GatewayClient | None = None
    """The gateway that this console is of; None where none is configured."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its path, the template that shows it, and the coroutine that makes its data from a request.

    The same data is at the path with `.json`. With a `name` it stands in the navigation, and `g` `key` leads there.
    `script` is the one script bundle that it loads (see `console.assets`). `does` is the action of `access.keys.roles`
    that it is: it is shown, and stands in the navigation, for who may do that with any subject. The coroutine may raise
    ApiError, StoreUnavailable and QueryError, which become pages that say so, and HTTPException.
    """

    path: str
    template: str
    data: Callable[[Request], Awaitable[Mapping[str, Any]]]
    name: str = ""
    key: str = ""
    script: str = "console.js"
    does: str = "look"


@dataclass(frozen=True, slots=True)
class Action:
    """Something to do at a path, such as a form, or a stream of updates; it makes its reply itself.

    It is asked only by who may do what it `does` with any subject (`access.keys.roles`), and a POST never from another
    site; of a subject, it asks `allowed` itself. What it raises becomes a page as for `Page`.
    """

    path: str
    handle: Callable[[Request], Awaitable[Response]]
    does: str
    methods: tuple[str, ...] = ("POST",)


View = Callable[[Sources], Iterable[Page | Action]]


class ConsoleUser(Protocol):
    """Who asks, as the part `access` knows people."""

    @property
    def name(self) -> str:
        """What they are called."""

    @property
    def id(self) -> str:
        """Their stable id; '' for who has a static key."""

    def author(self, given: str = "") -> str:
        """Return who a change is recorded as made by."""

    def may(self, action: str, subject: str = "") -> bool:
        """Return whether they may do an action with a subject, empty for all."""

    def may_some(self, action: str) -> bool:
        """Return whether there is any subject that they may do an action with."""


def person_in(request: Request) -> ConsoleUser:
    """Return the person who asks."""
    person: ConsoleUser = request.state.person
    return person


def allowed(request: Request, action: str, subject: str = "") -> bool:
    """Return whether the person who asks may do an action with a subject, empty for all of them."""
    return person_in(request).may(action, subject)


async def form_of(request: Request, most: int = 4096) -> dict[str, str]:
    """Return the fields of a form, of a name given twice the last. Raises HTTPException for more than `most` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise HTTPException(413, "This form is too large.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
