"""The seams: what the core asks of parts. With `gateway.steps`, which has what it gives them, the only door.

Each function below is declared here and written in the module `part` of a part, under the same name. The list of parts
(`gateway.parts.standard`) says which part provides which seam; that module is imported when one of the seam's functions
is first called. A part that is there and broken is the error it raises.

    @one        One part of the list provides it. What stands here happens without it: an empty body does nothing, and
                returns None.
    @every      Any number of parts provide it, those of other makers last. A call returns what each of them returns, in
                the order of the list; without any, an empty list.

What a `build_...` makes for a worker lives as long as the worker. It is called once, before there is an event loop:
nothing may be awaited, started or connected then. It is given the `gateway.steps.Core`, which has by then all that
stands above it in `gateway.assembly.build`. Where what it makes has `start`, that is called in the order of
`gateway.assembly.lifecycle`, after what it may use: the store, then the policies, the keys and the limits. Requests may
come before that, and after its end. `aclose` is awaited in the reverse order, while the store and the backends are
still open; it must return within a second or two.

Parts of other makers provide seams of `@every` alone. Stable of these are `admission` and what `Core` says of itself:
they change with a line in CHANGELOG.md. The others serve our own parts, and may change with them.

Declared elsewhere, below what this file imports:

    servers     In `gateway.backends.server_forms`: what the server of one backend wants otherwise than others.
    redaction   `gateway.config.schema`, too: checks of `telemetry.redact` and `redact_with`, refused without the part.
    adaptive    In `gateway.tiers.endpoint`: how many calls at a time a backend gets that slows down.
    answer_schemas
                In `gateway.cascade.answer_checks`: whether an answer is what the request asked for.
    http, identities
                In `gateway.config.backends`: the keys of a backend's `http` and `auth`, and what these make.
    heads       In `gateway.config.loader`: how likely an answer of a model is right, from its log-probabilities.
    records     In `gateway.telemetry.sink`: what writes the records of requests to the store.
    reading     In `policies.ADDED`: what policies of older releases say, and what to write instead.
    several_servers
                `cache.store.redis_nodes.SeveralServers`: reaches stores of several servers. Without, a store is one.

A kind of backend is one folder, `kinds/NAME` of a part that the list says has it (no part of another maker), where NAME
is what configs write after `kind:`. Its module `kind` has `KIND`, a class below
`gateway.config.backends.BackendConfig`, which is the kind `openai` itself: its fields, what they default to (`known`),
what it can and cannot do (`has`, `has_not`, `dialect`), what is wrong with a config (`findings`), and in `make` which
`gateway.backends.base.Backend` calls it, mostly a `gateway.backends.http_backend.HttpBackend`. Config, routing,
`tierline check` and traces ask the class alone, so nothing else is to be edited.

A part's sections of the config and of policies are no seams: the list of parts names them, its modules `config` and
`policy` define them, and `gateway.config.sections` and `policies.sections` put them together with the core's.
"""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cache.text.languages import read_by
from gateway.parts.standard import every, missing_for, one

if TYPE_CHECKING:
    import socket

    from fastapi import APIRouter, FastAPI
    from rich.console import Console
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from cache.flights import SharedFlights
    from cache.index import Choice, IndexKind, NewIndex
    from cache.semantic.cross_encoder import MeasuredPairScorer, PairQueue, TextPairScorer, TurnByTurn
    from cache.semantic.hit_bound import Complaint, HitBound, PublishedBound
    from cache.store.base import Store
    from cache.text.languages import ForeignLanguages
    from gateway.backends.server_forms import CallMemory
    from gateway.caching.write_behind import Observer
    from gateway.caller import Caller
    from gateway.cascade.protocols import AnswerVerifier, ConversationAdvisor, StreamSuccessor
    from gateway.config.launch import Launch
    from gateway.config.policy_reload import Policies
    from gateway.config.schema import Deployment
    from gateway.errors import ApiError
    from gateway.request.context import CallerLimits, EarlyHead, LivingStream, RequestContext
    from gateway.steps import Admission, Authenticator, ClientApi, Core, Described, Steps, StoreRoom, WorkerTask
    from gateway.telemetry.ledger import DecisionEncoder, Ledger
    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.sink import Exporter, Redactor
    from gateway.telemetry.trace import Trace
    from policies.errors import ConfigError, Finding
    from policies.loader import PolicySet, PolicySource
    from policies.model import Policy
    from routing.embedder import PublicEncoder


# Who asks, and what for.


@one("authenticator")
def build_authenticator(core: Core) -> Authenticator:
    """Return what knows who sends a worker's requests; without, everybody is one caller, and no key is required."""
    from gateway.caller import Everybody  # most commands need no config

    return Everybody()


@one("limits")
def build_limits(core: Core) -> CallerLimits | None:
    """Return how much each caller may send and spend; without, nothing limits anybody."""


@one("admin_port")
def build_admin_port(steps: Steps) -> Any:
    """Return the ASGI application of the admin port, when it is first asked."""


@one("audit")
async def note_config(store: Store, file: Path) -> None:
    """Note which keys of the config's file have changed since a gateway last ran with it."""


@every("admission")
def build_admissions(core: Core) -> Sequence[Admission]:
    """Return a worker's layers, in the order in which requests pass them. Stable."""


# The path of a request.


@one("encoders")
def load_minilm(state: Path) -> PublicEncoder:
    """Return the encoder MiniLM; its graph is kept under `state`. Raises EmbedderUnavailable or OSError."""
    from routing.embedder import EmbedderUnavailable

    raise EmbedderUnavailable(missing_for("encoders", "the embedding minilm"))


@one("encoders")
def load_pair_scorer(folder: Path) -> MeasuredPairScorer:
    """Return the cross-encoder of a folder. It was opened and has scored one pair as a check, or will with `open`: such
    a one as states the version of its files. Raises CrossEncoderError.
    """
    from cache.semantic.cross_encoder import CrossEncoderError

    raise CrossEncoderError(missing_for("encoders", "a cross-encoder"))


@one("encoders")
def build_pair_queue(scorer: TextPairScorer) -> PairQueue | None:
    """Return what lets requests wait for a cross-encoder, in which conversations are scored turn by turn."""


@one("encoders")
def compares_turns() -> TurnByTurn | None:
    """Return what compares conversations by turns, and long texts by sentences; without, texts are compared whole."""


@one("encoders")
def foreign_languages() -> ForeignLanguages | None:
    """Return what reads other languages than English; no files are read yet."""


def read_other_languages() -> None:
    """Have the part read other languages than English in this process; where it is not installed, nothing does."""
    read_by(foreign_languages)


@one("index")
def index_of(choice: Choice) -> NewIndex:
    """Return what makes a worker's index of stored questions; without, each worker has its own copy of them."""
    from cache.index import new_replica

    return new_replica


@one("index")
async def carried(store: Store) -> IndexKind | None:
    """Return the kind of index for this store; None where nothing supports one. Raises StoreUnavailable."""
    return "replica"


@one("hit_bound")
def build_hit_bound(core: Core) -> HitBound | None:
    """Return what sets the score from which semantic hits are served, and learns from those that were wrong."""


@one("hit_bound")
async def read_published(store: Store) -> Sequence[PublishedBound]:
    """Return what the workers' bounds have published, by surface. This and those below raise StoreUnavailable."""
    return ()


@one("hit_bound")
async def shown_published(store: Store) -> list[dict[str, Any]]:
    """Return what the hit bounds have published (see `read_published`) as JSON values, one per surface."""
    return []


@one("hit_bound")
def draw_published(shown: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print what `shown_published` returned."""
    console.print("wrong hits: not known; nothing compares stored answers in this installation", style="dim")


@one("hit_bound")
async def complain(store: Store, risk: PublishedBound, complaint: Complaint) -> None:
    """Report a wrong hit to every worker; one request's complaints count once."""


@one("hit_bound")
async def withdraw(store: Store, risk: PublishedBound, complaint: Complaint) -> None:
    """Tell every worker that a complaint was about no wrong hit."""


@one("cache_admin")
def build_store_room(core: Core) -> StoreRoom | None:
    """Return what fits `core.quotas` into the store's memory; without, they stay as the config has them."""


@one("cache_admin")
def cut_down_quotas(deployment: Deployment, policies: PolicySet) -> Iterable[tuple[str, str]]:
    """Return the quotas of the config that the embedded store has no room for, with what it gives instead, in words."""
    return ()


@one("cache_admin")
async def remove_wrong(
    store: Store, entry_id: str, surface: str, owners: Sequence[str], created_at: float | None
) -> str:
    """Delete an entry that was wrongly served to these owners of answers; return its id, '' if it is gone.

    One of another time of creation is a different answer and stays. Raises StoreUnavailable.
    """
    return ""


@one("flights")
def build_flights(core: Core) -> SharedFlights | None:
    """Return what lets equal requests of several workers share an answer, once `core.cache.delayed` is written."""


@one("conversations")
def build_conversation_advisor(core: Core) -> ConversationAdvisor | None:
    """Return what remembers the turns before a request: who answered, what tiers hold of the prompt, how hard."""


@one("call_memory")
def build_call_memory(core: Core) -> CallMemory | None:
    """Return what keeps a model's reasoning before a tool call, to send it back with the tool's result."""


@one("verifier")
def build_verifier(core: Core) -> AnswerVerifier | None:
    """Return what verifies drafts by other means than log-probabilities, such as a judge or a second sample."""


@one("successor")
def build_successor(core: Core) -> StreamSuccessor | None:
    """Return what continues streams that break; without, they end with an error."""


@one("early_heads")
def early_head(request: RequestContext, send: Any, writer: LivingStream | None) -> EarlyHead | None:
    """Return what sends the head of a stream early, as `escalate.stream.alive` says; `writer` is of another API."""


# Other APIs.


@every("client_api")
def build_client_api(core: Core) -> ClientApi:
    """Return what answers paths beside those of chat completions."""


@every("client_errors")
def error_body(error: ApiError, scope: Any, request_id: str) -> bytes | None:
    """Return the body of an error as an API's clients know it; None for a request of others."""


@one("feedback")
async def feedback_lines(store: Store) -> Mapping[tuple[str, str], str]:
    """Return what clients have said of answers, a line each, by tenant and request id. Raises StoreUnavailable."""
    return {}


@one("routes")
def cold_routes(steps: Steps) -> Any:
    """Return the ASGI application of what is not hot on the public port, when it is first asked."""


@every("public_routers")
def public_routers() -> Sequence[APIRouter]:
    """Return cold routes of the public port; `app.state.steps` are the worker's."""


@one("openapi")
def common_replies() -> Mapping[int | str, dict[str, Any]]:
    """Return replies that every route may give, as FastAPI takes them."""
    return {}


@one("openapi")
def add_documents(api: FastAPI, title: str, beside: Sequence[Described], *, keyed: bool) -> None:
    """Serve documents of an application's routes and of those `beside` it. `keyed`: requests need a key."""


@every("admin_routers")
def admin_routers() -> Sequence[APIRouter]:
    """Return routes of the admin API; `app.state.steps` are the worker's."""


# Beside requests, and after them.


@one("observers")
def build_observers(core: Core) -> Sequence[Observer]:
    """Return what reads a worker's fresh answers once their requests are over, at the operator's expense."""
    return ()


@every("tasks")
def build_tasks(core: Core) -> Mapping[str, WorkerTask]:
    """Return what runs in a worker beside requests by its name, in the order in which it starts."""


@one("logs")
def configure_logging(deployment: Deployment) -> None:
    """Send this process's log to stderr, where no log handler is set yet; without, warnings alone, as they come."""
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")


@one("logs")
def build_request_log(core: Core) -> Callable[[Trace, Ledger], None] | None:
    """Return what logs a line for each finished request and never blocks; None where the config asks for none."""


@one("metrics")
def build_metrics() -> Metrics:
    """Return what counts a worker's requests and events; without, nothing is counted."""
    from gateway.telemetry.metrics import Metrics

    return Metrics()


@one("readiness")
def readiness(steps: Steps) -> dict[str, Any]:
    """Return the body of `/readyz`: `status` (ready, degraded, unavailable or draining), and what is degraded."""
    status = "ready" if any(tier.configured for tier in steps.deployment.tiers) else "unavailable"
    return {"status": "draining" if steps.gate.draining else status}


@one("metrics")
def metrics_routes() -> Sequence[Route]:
    """Return the routes of what was counted; `app.state.steps` are the worker's."""
    return ()


@one("metrics")
def shared_metrics(workers: int) -> AbstractContextManager[Callable[[int], None]]:
    """Return what lets several workers count together, and is told the process id of each that ended by itself.

    Entering it raises CannotServe.
    """
    return nullcontext(lambda _: None)


@one("workers")
def serve_by_workers(
    launch: Launch, deployment: Deployment, listening: list[socket.socket], lost: Callable[[int], None]
) -> int:
    """Serve in several processes until a signal; return the exit code. `lost` is told of each that ended by itself.

    Raises CannotServe.
    """
    from gateway.config.launch import CannotServe

    raise CannotServe(missing_for("workers", f"--workers {launch.workers}"))


@one("otlp")
def spans(dropped: Callable[[str, int], None]) -> Exporter | None:
    """Return what is given the requests whose hops are recorded, once each, after the reply; None where the environment
    asks for none. `dropped` counts lost requests, by reason.
    """


@one("otlp")
def meter(dropped: Callable[[str, int], None]) -> Exporter | None:
    """Return what is given every finished request, once each, after the reply; see `spans`."""


@one("figures")
def build_figures(core: Core) -> Callable[[Trace, Ledger], None] | None:
    """Return what completes the records of requests: the objectives that each met, and what it saved."""


@one("redaction")
def build_redactor(core: Core) -> Redactor | None:
    """Return what removes from captured texts what must not be kept; None where the config asks for nothing."""


@one("recorder")
def build_recorder(artefacts: Mapping[str, str]) -> DecisionEncoder | None:
    """Return what the records of requests say of decisions, by the versions of the artefacts that decide."""


@one("reasons")
def hop_completer() -> Callable[[Trace], None] | None:
    """Return what adds to the hops of a finished trace what decided them, after the reply, if they are recorded."""


@one("reasons")
def reasons_of(hop: Mapping[str, Any], *, clause: bool = True) -> list[str]:
    """Return why a hop of a record ended as it did, the decisive reason first; without, its attributes as they are.

    Without `clause` the key of the policy that decided is left out.
    """
    words = [f"{name} {value}" for name, value in hop["attributes"].items()]
    return [*words, f"error {hop['error']}"] if hop["error"] else words


# Policies and records.


@one("reload")
def watched(
    source: PolicySource, reloaded: Callable[[PolicySet], None], refused: Callable[[ConfigError], None]
) -> Policies:
    """Return what follows the files of policies; without, they are read once. Raises ConfigError.

    The callbacks are as `follow` has them.
    """
    from gateway.config.policy_reload import FilePolicies

    return FilePolicies(source)


@one("policies")
def follow(
    core: Core,
    source: PolicySource,
    reloaded: Callable[[PolicySet], None],
    refused: Callable[[ConfigError], None],
    noted: Callable[[str], None],
) -> Policies:
    """Return what follows the policies in the store (`policies.source: store`); without, files. Raises ConfigError.

    The callbacks are called on the event loop: with each set that comes into force and when a failure is corrected,
    with each new failure, and with what an operator should know, once each.
    """
    return watched(source, reloaded, refused)


@one("policies")
async def tried(policies: Policies, headers: Mapping[bytes, bytes], caller: Caller, live: Policy) -> Policy:
    """Return the policy version that a request names (`x-tierline-try`), to answer in place of `live`.

    Raises ApiError.
    """
    return live


@one("policies")
async def drift(store: Store, source: PolicySource) -> tuple[str, ...]:
    """Return which files say something else than the store has in force. Raises StoreUnavailable."""
    return ()


@one("policy_lab")
def recorded_doubts(folder: Path, oldest: float | None) -> AbstractContextManager[Callable[[Policy], list[Finding]]]:
    """Return what holds a policy against the ledger's files in a folder, since `oldest`. Raises CommandError."""
    return nullcontext(lambda policy: [])


@one("policy_lab")
def tests_schema_text() -> str:
    """Return the JSON Schema of tests of policies."""
    return ""


@one("archive")
def archive_folder(deployment: Deployment) -> Path | None:
    """Return the folder of the files with records that the config names; None for `ledger` in the state folder."""


@one("archive")
def keeps_archive(deployment: Deployment) -> bool:
    """Return whether records are kept in files."""
    return False


@one("archive")
def has_files(folder: Path) -> bool:
    """Return whether there are records in the files of a folder."""
    return False


@one("archive")
def older_records(folder: Path, before: tuple[int, int]) -> Iterable[tuple[tuple[int, int], dict[str, Any]]]:
    """Return the records before a place of the store's stream, newest first, with their places. Raises CommandError."""
    return ()


@one("archive")
def kept_record(folder: Path, request_id: str) -> dict[str, Any] | None:
    """Return the newest record of a request id; None if there is none. Raises CommandError."""


class ConsolePlace(NamedTuple):
    """Where the console is to listen, and which variables it needs of those that hold secrets."""

    host: str
    port: int
    """0 for any free one."""
    gateway: str | None
    """URL of the gateway that it asks; None for the one that is started with it."""
    secrets: tuple[str, ...]


@one("console")
def console_place(deployment: Deployment) -> ConsolePlace | None:
    """Return where the console listens that `tierline up` starts; None where the config says not to start it."""


class ConsoleShell(Protocol):
    """What the console gives a part for its pages. Who asks stands in a request's `state.person`.

    What a page or an action raises of `ApiError` becomes a page that says so, under the `title` that its class may
    have; so does StoreUnavailable, and an HTTPException of status 303 leads to its `location`.
    """

    store: Store
    deployment: Deployment
    gateway: str
    """URL of the gateway that this console is of; '' where none is configured."""

    def page(
        self,
        path: str,
        template: str,
        data: Callable[[Request], Awaitable[Mapping[str, Any]]],
        does: str,
        *,
        name: str = "",
        key: str = "",
    ) -> None:
        """Add a page for who may do what it `does` (an action of roles) with any subject; with `.json` it is its data.

        With a `name` it stands in the navigation, and `g` `key` leads there.
        """

    def action(self, path: str, handle: Callable[[Request], Awaitable[Response]], does: str) -> None:
        """Add what takes the forms of a path."""

    def reply(self, request: Request, template: str, data: Mapping[str, Any], *, status: int = 200) -> Response:
        """Return a page in reply to a form."""

    async def form(self, request: Request, most: int = 4096) -> dict[str, str]:
        """Return the fields of a form of at most so many bytes."""

    async def ask(self, sql: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of a query of the records. Raises ApiError where they cannot be read."""

    async def surfaces(self) -> Sequence[str]:
        """Return the surfaces whose policies are in force from the store; none where they come from files."""


@every("pages")
def add_pages(shell: ConsoleShell) -> None:
    """Add the pages of a part to the console. Their templates stand in the folder `templates` beside the module."""
