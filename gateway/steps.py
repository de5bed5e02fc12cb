"""Define what one worker has, and what parts bring to it: `gateway.seams` says which part makes what.

`gateway.assembly` builds the steps, starts them and closes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from fastapi import APIRouter
    from pydantic import SecretStr

    from cache.response_cache import ResponseCache
    from cache.scopes.scope import Caps
    from cache.semantic.cross_encoder import MeasuredPairScorer
    from cache.semantic.verifier import Verifier
    from cache.store.base import Store
    from gateway.backends.server_forms import CallMemory
    from gateway.caching.coalescer import Coalescer
    from gateway.caching.lookups import ExactLookup, QuestionEmbedder, SemanticLookup
    from gateway.caching.write_behind import Observer, WriteBehind
    from gateway.caller import Caller, LoopbackGuard
    from gateway.cascade.protocols import AnswerVerifier
    from gateway.cascade.router import Router
    from gateway.cascade.runner import CascadeRunner
    from gateway.config.policy_reload import Policies
    from gateway.config.schema import Deployment
    from gateway.request.context import CallerLimits, RequestContext
    from gateway.request.load_shedding import LoadShedder
    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.sink import Telemetry
    from gateway.tiers import Endpoint, Tier
    from policies.loader import PolicySet
    from routing.difficulty.model import DifficultyModel
    from routing.embedder import PublicEncoder


class LoadedModels(NamedTuple):
    """The models that run in the worker itself."""

    embedder: PublicEncoder
    classifier: DifficultyModel
    verifier: Verifier
    """Says how alike two questions are."""
    cross_encoder: MeasuredPairScorer | None
    cosine_weight: float
    """Weight of the cosine in the cross-encoder's scores; 0 without one."""


class Core:
    """What a worker's core has, from its config to its APIs, in the order in which it is made.

    Nothing is replaced while the worker runs; policies, keys and health change inside these. Stable are `deployment`,
    `store`, `metrics`, `policies` and `tiers`.
    """

    deployment: Deployment
    secret: bytes
    """Key of the hashes under which the store has what clients are given back."""
    store: Store
    metrics: Metrics
    models: LoadedModels
    policies: Policies
    kept_calls: CallMemory | None
    tiers: Mapping[str, Tier]
    """Those of the config, by their names."""
    endpoints: Mapping[str, Endpoint]
    """Their backends, by their names."""
    quotas: Mapping[str, Caps]
    """Quotas of what the store keeps for each tenant, by section of the config. They change with the store's memory."""
    cache: ResponseCache
    limits: CallerLimits | None
    telemetry: Telemetry
    embedder: QuestionEmbedder
    """Makes vectors of questions; its `cosine` compares two texts by meaning, -1..1."""
    verifier: AnswerVerifier | None
    router: Router
    authenticator: Authenticator
    client_apis: Sequence[ClientApi]
    """What answers paths beside those of chat completions."""


class Steps(Core):
    """Hold the core, what parts have made of it, and the objects by which `gateway.pipeline.answer` answers."""

    started_at: int
    """Unix seconds."""
    gate: LoadShedder
    guard: LoopbackGuard
    room: StoreRoom | None
    admissions: Sequence[Admission]
    """What else lets a chat in, in this order."""
    observers: Sequence[Observer]
    exact_cache: ExactLookup
    coalescer: Coalescer
    semantic_cache: SemanticLookup
    cascade: CascadeRunner
    write_behind: WriteBehind


# What parts bring.


class KeyFiles(Protocol):
    """Looks at files of keys while a worker runs."""

    def watch(
        self, files: Sequence[Path], least: int, take: Callable[[list[SecretStr]], None]
    ) -> Callable[[], Awaitable[None]] | None:
        """Have `take` called with all keys of these files when one of them changes. It raises BadSecret to refuse them.

        Keys have at least `least` characters. Returns what looks at the files now; None where there is no file.
        """

    def watch_one(self, file: Path, rekey: Callable[[str | None], None]) -> Callable[[], Awaitable[None]] | None:
        """Have `rekey` called with the one key in a file when it changes; return what looks at the file now."""


class Authenticator(Protocol):
    """Finds who sends a request, by its headers' names in lower case and their values; one for a worker."""

    @property
    def notes(self) -> Sequence[str]:
        """What is wrong with keys or identities, in words, for `/readyz`."""

    def known(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return the caller of a request; None if it has to be found. Raises Unauthorized."""

    async def find(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller of a request, asking the store if need be.

        Raises Unauthorized, and Overloaded where nobody can say whose the key is.
        """

    async def is_operator(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the sender may read data on all tenants: /metrics and the details of /readyz."""

    def watch(self, files: KeyFiles) -> None:
        """Have the files of keys watched."""

    async def start(self) -> None:
        """Begin to know callers, before requests are served; it may wait for the store for two seconds."""

    async def aclose(self) -> None:
        """End it, while the store is open."""


class Admission(Protocol):
    """A layer of `gateway.http.exchange`, one for a worker: each chat passes it, with its policy and limits, before the
    pipeline. Its `aclose` is awaited at the close.

    With an attribute `keys`, keys of policies, it is passed by chats alone whose policy has one of them.
    """

    @property
    def name(self) -> str:
        """What the lifecycle calls it."""

    def enter(self, request: RequestContext) -> Awaitable[RequestContext] | None:
        """Return the request as the next layer gets it, which may take a while; None if it stays as it is.

        It or what is awaited raises ApiError for a request that is not let in. What is to be done at the request's end
        goes to `request.trace.then`.
        """

    async def aclose(self) -> None:
        """Finish what requests have left to be done."""


AsgiApp = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]
"""An application of ASGI, by its scope, `receive` and `send`."""


class ServedPaths(NamedTuple):
    """What answers further paths of the public port, besides the cold routes of FastAPI."""

    posts: Mapping[str, AsgiApp]
    """What answers a POST, by its whole path; other methods are refused."""
    find: Callable[[str], AsgiApp | None] | None = None
    """Returns what answers all methods of a path; None where it is no path of this API."""
    sockets: Mapping[str, AsgiApp] = MappingProxyType({})
    """What answers WebSockets, by their paths."""
    socket_protocol: Callable[..., asyncio.Protocol] | None = None
    """Returns uvicorn's protocol of an open WebSocket, which is a `gateway.server.connection_limits.Connection`."""


class Described(NamedTuple):
    """A route that is served without FastAPI: replies to other methods and paths name it, an OpenAPI document shows it.

    `body`: a model, or the media type of what is passed on as it is. `media` is that of the reply, whose model `reply`
    is where that is JSON; of `stream`, server-sent events come in its place. `failure`: model of the reply that a
    request gets which failed; None for OpenAI's envelope.
    """

    method: str
    path: str
    summary: str = ""
    tag: str = "The gateway"
    body: Any = None
    reply: Any = dict[str, Any]
    stream: bool = False
    media: str = "application/json"
    failure: Any = None


class ClientApi(Protocol):
    """Further APIs of a worker. It starts once the store has, and closes before it; requests end before that."""

    @property
    def name(self) -> str:
        """What the lifecycle calls it."""

    def serve(self, steps: Steps) -> ServedPaths:
        """Return what answers its paths."""

    def routes(self) -> tuple[Sequence[APIRouter], Sequence[Described]]:
        """Return its cold routes, and a description of what `serve` answers. Imports FastAPI."""

    def watch_keys(self, files: KeyFiles) -> None:
        """Have the keys of servers that it calls read again when their files change."""

    def readiness(self, policies: PolicySet) -> tuple[Sequence[str], Mapping[str, Any]]:
        """Return what is degraded, in words, and further members for the body of `/readyz`."""

    def start(self) -> None:
        """Start on the worker's event loop."""

    async def aclose(self) -> None:
        """Close its connections and tasks."""


class StoreRoom(Protocol):
    """Fits `Core.quotas` into the store's memory, from its start to its close."""

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    def degraded(self) -> list[str]:
        """Return what is wrong with the store's version and memory, for `/readyz`."""

    def evicted(self) -> int:
        """Return how many keys the store has evicted since it started; 0 where that is not known."""


class WorkerTask(Protocol):
    """A task of a part that runs in a worker beside requests, from `start` to `aclose`."""

    def start(self) -> None:
        """Begin the task on the running event loop."""

    async def aclose(self) -> None:
        """End it."""
