"""The seams: what the core asks of a part, and gives it. The only door, for our own parts too.

The list of parts (`gateway.parts.standard`) says which part provides what, by the name of a seam. Its module `part` is
imported when the seam is first asked for, and has the functions of the seam's protocol below. The core works without:
a part that this installation was made without is None here. A part that is there and broken is the error it raises.

What a part makes for a worker lives as long as the worker. It is made when the worker's steps are wired, before there
is an event loop: nothing may be awaited or started then. It starts by its `run`, as a task, once the store, the
policies and the keys have started. Requests may come before that, and after it ends. At the close `run` is cancelled
and `aclose` awaited, while the store and the backends are still open; it must return within a second or two.

    hit_bound   `HitBoundPart`. Its `build` makes the `cache.semantic.hit_bound.HitBound` of a worker: it sets the score
                from which semantic hits are served, and learns from those that were wrong. Its other functions say,
                with the store alone, what the workers' bounds have published. Not stable yet.
    otlp        `OtlpPart`. Its functions make what exports finished requests, where the environment asks for it.
                Stable: an exporter is given each request's trace and ledger, once, after its reply.
    encoders    `EncodersPart`. Its functions load the models that read texts, beside the static vectors of the core,
                and import the models' libraries only then. Not stable yet.
    authenticator
                `AuthenticatorPart`. Its `build_authenticator` makes the `Authenticator` of a worker: it says who sends
                a request. Without, no key is required. Not stable yet.
    limits      `LimitsPart`. Its `build_limits` makes the `gateway.request.context.CallerLimits` of a worker: how much
                each caller may send and spend. Without, nothing limits anybody. Not stable yet.
    admin_port  `AdminPortPart`. Its `build_admin_port` makes the application of the admin port. Not stable yet.
    audit       `AuditPart`: what has changed in the config since it was last used. Not stable yet.
    admission   `AdmissionPart`, of any number of parts, in the order of the list. Its `build_admissions` makes layers
                through which each chat passes, once its policy and its limits are known and before the pipeline: they
                refuse it, or change it. Not stable yet.
    verifier    `VerifierPart`. Its `build_verifier` makes the `gateway.cascade.protocols.AnswerVerifier` of a worker:
                it says how sure a draft is whose log-probabilities do not. Not stable yet.
    successor   `SuccessorPart`. Its `build_successor` makes the `gateway.cascade.protocols.StreamSuccessor` of a
                worker, which continues streams that break. Without, they end with an error. Not stable yet.
    conversations   `ConversationPart`. Its `build_conversation_advisor` makes the
                `gateway.cascade.protocols.ConversationAdvisor` of a worker, which remembers the turns before a request:
                who answered, what tiers hold of the prompt, how hard they were. Not stable yet.
    call_memory `CallMemoryPart`. Its `build_call_memory` makes the `gateway.backends.call_reasoning.CallMemory` of a
                worker, from which a model gets back its reasoning before a tool call. Not stable yet.
    cache_admin `CacheAdminPart`. Its `remove_wrong` deletes a cached answer that a client calls wrong. Not stable yet.
    servers     `gateway.backends.server_forms.ServersPart`. Its functions make, for a backend, what learns the fields
                that its model refuses, and what sends fields under other names. Without, they go out as they came, and
                `rename`, `omit` and `roles: one_system` are errors. Not stable yet.
    client_api  `ClientApiPart`, of any number of parts. Its `build_client_api` makes the `ClientApi` of a worker, which
                answers paths beside those of chat completions. Not stable yet.
    client_errors   `ClientErrorsPart`, of any number of parts, writes an error as the clients of an API know it. Not
                stable yet.
    archive     `ArchivePart`: whether records are kept in files, and where, and what these have. Not stable yet.
    console     `ConsolePart`: where the console listens that `tierline up` starts. Not stable yet.
    pages       `PagesPart`, of any number of parts. Its `add_pages` adds to the console the pages of the part, by a
                `ConsoleShell`; their templates stand in the part's folder `templates`. Not stable yet.
    lint        `LintPart`: what is wrong or doubtful in a policy that loads. Not stable yet.
    recorder    `RecorderPart`. Its `build_recorder` makes the `gateway.telemetry.record.DecisionEncoder` of a worker:
                what the record of a request says of its decision. Not stable yet.
    flights     `FlightsPart`. Its `build_flights` makes the `cache.flights.shared_flights.SharedFlights` of a worker:
                equal requests of several workers share an answer. Without, a worker shares among its own. Not stable
                yet.
    tasks       `TasksPart`, of any number of parts. Its `build_tasks` makes what runs in a worker from its start to
                its close, beside requests. Not stable yet.
    identities  Its module has `AUTH`, a class below `gateway.config.backends.Auth`: the keys of `auth` in the config,
                what must be installed for them, and the `gateway.backends.base.Identity` that signs requests in place
                of a key. Not stable yet.
    http        Its module has `HTTP`, a class below `gateway.config.backends.Http`: the keys of a backend's `http`, and
                the transport that calls it. Not stable yet.
    policies    `PoliciesPart`. Its `follow` makes what a worker takes its policies from where the config says
                `policies.source: store`; files need no part. It is started before all that asks for policies. Its
                `tried` finds the policy that a request names itself (`x-tierline-try`). Not stable yet.
    observers   `ObserversPart`. Its `build_observers` makes what reads a worker's fresh answers once their requests are
                over, at the operator's expense. Not stable yet.
    public_routers
                `PublicRoutersPart`, of any number of parts. Its `public_routers` are cold routes of the public port.
                Not stable yet.
    openapi     `OpenApiPart`. Its `add_documents` describes what an application serves. Not stable yet.
    admin_routers
                `AdminRoutersPart`, of any number of parts. Its `admin_routers` are routes of the admin API. Not stable
                yet.
    policy_lab  `PolicyLabPart`. What `policy lint` and `policy schema` say of records, and of tests of policies. Not
                stable yet.

A part's sections of the config and of policies are no seams: the list of parts names them, its modules `config` and
`policy` define them, and `gateway.config.sections` and `policies.sections` put them together with the core's.

A kind of backend is one folder, `kinds/NAME` of a part that the list says has it, where NAME is what configs write
after `kind:`. Its module `kind` has `KIND`, a class below `gateway.config.backends.BackendConfig`, which is the kind
`openai` itself. The class says what its fields are, what they default to (`known`), what it can and cannot do (`has`,
`has_not`, `dialect` and the other class variables), what is wrong with a config (`findings`), and in `make` which
`gateway.backends.base.Backend` calls it: mostly a `gateway.backends.http_backend.HttpBackend`, which writes a chat
completion in its dialect and reads the reply as one. Config, routing, `tierline check` and traces ask the class alone,
so nothing else is to be edited. Not stable yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from cache.text.languages import read_by
from gateway.parts.standard import provider, providers

if TYPE_CHECKING:
    import asyncio

    from fastapi import APIRouter, FastAPI
    from rich.console import Console
    from starlette.requests import Request
    from starlette.responses import Response

    from cache.flights.shared_flights import SharedFlights
    from cache.scopes.shelf import Caps
    from cache.semantic.cross_encoder_queue import MeasuredPairScorer
    from cache.semantic.hit_bound import Complaint, HitBound, PublishedBound
    from cache.store.base import Store
    from cache.store.delayed_writes import DelayedWrites
    from cache.text.languages import ForeignLanguages
    from gateway.backends.call_reasoning import CallMemory
    from gateway.caller import Caller
    from gateway.cascade.protocols import AnswerVerifier, ConversationAdvisor, StreamSuccessor
    from gateway.cascade.router import Router
    from gateway.config.key_files import KeyFiles
    from gateway.config.policy_reload import Policies
    from gateway.config.schema import Deployment
    from gateway.errors import ApiError
    from gateway.request.context import CallerLimits, RequestContext
    from gateway.steps import Steps
    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.record import DecisionEncoder
    from gateway.telemetry.sink import Exporter, Telemetry
    from gateway.tiers import Endpoint, Tier
    from policies.errors import ConfigError, Finding, Problem
    from policies.loader import PolicySet, PolicySource
    from policies.model import Policy
    from policies.yaml_source import Document
    from routing.confidence.judge import Evidence
    from routing.difficulty.model import DifficultyModel
    from routing.embedding.embedder import PublicEncoder, Vector


class HitBoundNeeds(NamedTuple):
    """What the core gives a hit bound. `endpoints` are the backends by their names.

    `kind` is that of the config's embedding.
    """

    store: Store
    embedder: PublicEncoder
    kind: str
    verifier: str
    """Version of the verifier, which makes scores."""
    cross_encoder: MeasuredPairScorer | None
    cosine_weight: float
    endpoints: Mapping[str, Endpoint]
    metrics: Metrics


class HitBoundPart(Protocol):
    """The functions of the module that provides `hit_bound`. All that is async raises StoreUnavailable."""

    def build(self, needs: HitBoundNeeds) -> HitBound:
        """Return a worker's hit bound, which is not started."""

    async def read_published(self, store: Store) -> Sequence[PublishedBound]:
        """Return what is published, by surface."""

    async def shown_published(self, store: Store) -> list[dict[str, Any]]:
        """Return what is published as JSON values, by surface."""

    def draw_published(self, shown: Sequence[Mapping[str, Any]], console: Console) -> None:
        """Print what `shown_published` returned."""

    async def complain(self, store: Store, risk: PublishedBound, complaint: Complaint) -> None:
        """Report a wrong hit to every worker; one request's complaints count once."""

    async def withdraw(self, store: Store, risk: PublishedBound, complaint: Complaint) -> None:
        """Tell every worker that a complaint was about no wrong hit."""


class CacheAdminPart(Protocol):
    """The functions of the module that provides `cache_admin`."""

    async def remove_wrong(
        self, store: Store, entry_id: str, surface: str, owners: Sequence[str], created_at: float | None
    ) -> str:
        """Delete an entry that was wrongly served to these owners of answers; return its id, '' if it is gone.

        One of another time of creation is a different answer and stays. Raises StoreUnavailable.
        """


def cache_admin_part() -> CacheAdminPart | None:
    """Return what removes cached answers; None where this installation has no such part."""
    return cast("CacheAdminPart | None", provider("cache_admin"))


class ArchivePart(Protocol):
    """The functions of the module that provides `archive`."""

    def archive_folder(self, deployment: Deployment) -> Path | None:
        """Return the folder of the files that the config names; None for `ledger` in the state folder."""

    def keeps_archive(self, deployment: Deployment) -> bool:
        """Return whether records are kept in files."""

    def has_files(self, folder: Path) -> bool:
        """Return whether there are records in the files of a folder."""

    def older_records(self, folder: Path, before: tuple[int, int]) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
        """Yield the records before a place of the store's stream, newest first, with their places.

        Raises CommandError.
        """

    def kept_record(self, folder: Path, request_id: str) -> dict[str, Any] | None:
        """Return the newest record of a request id; None if there is none. Raises CommandError."""


class ConsolePlace(NamedTuple):
    """Where the console is to listen, and which variables it needs of those that hold secrets."""

    host: str
    port: int
    """0 for any free one."""
    gateway: str | None
    """URL of the gateway that it asks; None for the one that is started with it."""
    secrets: tuple[str, ...]


class ConsolePart(Protocol):
    """The functions of the module that provides `console`."""

    def console_place(self, deployment: Deployment) -> ConsolePlace | None:
        """Return where the console listens; None where the config says not to start it."""


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


class PagesPart(Protocol):
    """The functions of a module that provides `pages`. Beside it is the folder `templates`."""

    __file__: str

    def add_pages(self, shell: ConsoleShell) -> None:
        """Add the pages of the part."""


def pages_parts() -> Sequence[PagesPart]:
    """Return what has pages of the console."""
    return cast("Sequence[PagesPart]", providers("pages"))


def archive_part() -> ArchivePart | None:
    """Return what keeps records in files; None where this installation has no such part."""
    return cast("ArchivePart | None", provider("archive"))


def console_part() -> ConsolePart | None:
    """Return what serves the console; None where this installation has no such part."""
    return cast("ConsolePart | None", provider("console"))


class OtlpPart(Protocol):
    """The functions of the module that provides `otlp`. Each takes what counts lost requests, by reason."""

    def spans(self, dropped: Callable[[str, int], None]) -> Exporter | None:
        """Return what is given the requests whose hops are recorded; None where the environment asks for none."""

    def meter(self, dropped: Callable[[str, int], None]) -> Exporter | None:
        """Return what is given every request; None where the environment asks for none."""


def otlp_part() -> OtlpPart | None:
    """Return what exports spans and metrics by OTLP; None where this installation has no such part."""
    return cast("OtlpPart | None", provider("otlp"))


def hit_bound_part() -> HitBoundPart | None:
    """Return what bounds wrong hits; None where this installation has no such part."""
    return cast("HitBoundPart | None", provider("hit_bound"))


class Authenticator(Protocol):
    """Finds who sends a request, by its headers' names in lower case and their values; one for a worker."""

    @property
    def notes(self) -> Sequence[str]:
        """What is wrong with it, in words, for /readyz."""

    def known(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return the caller of a request; None if it has to be found. Raises Unauthorized."""

    async def find(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller of a request, known or not. Raises Unauthorized, and Overloaded in trouble."""

    async def is_operator(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the sender may read data on all tenants: /metrics and the details of /readyz."""

    def watch(self, files: KeyFiles) -> None:
        """Have the files of keys watched."""

    async def start(self) -> None:
        """Begin to know callers, before requests are served; it may wait for the store for two seconds."""

    async def aclose(self) -> None:
        """End it, while the store is open."""


class AuthenticatorPart(Protocol):
    """The functions of the module that provides `authenticator`."""

    def build_authenticator(self, deployment: Deployment, store: Store) -> Authenticator:
        """Return what knows who sends a worker's requests."""


class AdminPortPart(Protocol):
    """The functions of the module that provides `admin_port`."""

    def build_admin_port(self, steps: Steps) -> Any:
        """Return the ASGI application that answers requests to the admin port."""


class AuditPart(Protocol):
    """The functions of the module that provides `audit`."""

    async def note_config(self, store: Store, file: Path) -> None:
        """Note which keys of the config's file have changed since a gateway last ran with it."""


def audit_part() -> AuditPart | None:
    """Return what keeps who changed what; None where this installation has no such part."""
    return cast("AuditPart | None", provider("audit"))


def admin_port_part() -> AdminPortPart | None:
    """Return what serves the admin port; None where this installation has no such part."""
    return cast("AdminPortPart | None", provider("admin_port"))


def new_authenticator(deployment: Deployment, store: Store) -> Authenticator:
    """Return what knows who sends a worker's requests: everybody is one caller where no part knows better."""
    from gateway.caller import Everybody  # most commands need no config

    part = cast("AuthenticatorPart | None", provider("authenticator"))
    return Everybody() if part is None else part.build_authenticator(deployment, store)


class LimitsNeeds(NamedTuple):
    """What the core gives the limits."""

    deployment: Deployment
    store: Store
    tiers: Mapping[str, Tier]
    metrics: Metrics


class LimitsPart(Protocol):
    """The functions of the module that provides `limits`."""

    def build_limits(self, needs: LimitsNeeds) -> CallerLimits:
        """Return a worker's limits, which are not started."""


def limits_part() -> LimitsPart | None:
    """Return what limits callers; None where this installation has no such part."""
    return cast("LimitsPart | None", provider("limits"))


class AdmissionNeeds(NamedTuple):
    """What the core gives those that let chats in. `tiers` are those of the config, by their names."""

    deployment: Deployment
    store: Store
    tiers: Mapping[str, Tier]
    metrics: Metrics


class Admission(Protocol):
    """A layer of `gateway.http.exchange`, one for a worker. Its `aclose` is awaited at the close."""

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


class AdmissionPart(Protocol):
    """The functions of a module that provides `admission`."""

    def build_admissions(self, needs: AdmissionNeeds) -> Sequence[Admission]:
        """Return a worker's layers, in the order in which requests pass them."""


def admission_parts() -> Sequence[AdmissionPart]:
    """Return what lets chats in, besides the limits of those who send them."""
    return cast("Sequence[AdmissionPart]", providers("admission"))


class VerifierNeeds(NamedTuple):
    """What the core gives a verifier of drafts."""

    deployment: Deployment
    store: Store
    tiers: Mapping[str, Tier]
    cosine: Callable[[str, str], float | None]
    """Compares two texts by meaning, -1..1; None where that would take too long."""


class VerifierPart(Protocol):
    """The functions of the module that provides `verifier`."""

    def build_verifier(self, needs: VerifierNeeds) -> AnswerVerifier:
        """Return a worker's verifier of drafts."""


class SuccessorPart(Protocol):
    """The functions of the module that provides `successor`."""

    def build_successor(self, tiers: Mapping[str, Tier]) -> StreamSuccessor:
        """Return what continues a worker's broken streams."""


class ConversationPart(Protocol):
    """The functions of the module that provides `conversations`."""

    def build_conversation_advisor(self, tiers: Mapping[str, Tier]) -> ConversationAdvisor:
        """Return what remembers a worker's conversations."""


def new_conversation_advisor(tiers: Mapping[str, Tier]) -> ConversationAdvisor | None:
    """Return what remembers a worker's conversations; None where this installation has no such part."""
    part = cast("ConversationPart | None", provider("conversations"))
    return None if part is None else part.build_conversation_advisor(tiers)


class CallMemoryPart(Protocol):
    """The functions of the module that provides `call_memory`."""

    def build_call_memory(self, store: Store) -> CallMemory:
        """Return what keeps the reasoning of a worker's tool calls."""


def new_call_memory(store: Store) -> CallMemory | None:
    """Return what keeps the reasoning of a worker's tool calls; None where this installation has no such part."""
    part = cast("CallMemoryPart | None", provider("call_memory"))
    return None if part is None else part.build_call_memory(store)


def new_verifier(needs: VerifierNeeds) -> AnswerVerifier | None:
    """Return a worker's verifier of drafts; None where this installation has no such part."""
    part = cast("VerifierPart | None", provider("verifier"))
    return None if part is None else part.build_verifier(needs)


def new_successor(tiers: Mapping[str, Tier]) -> StreamSuccessor | None:
    """Return what continues a worker's broken streams; None where this installation has no such part."""
    part = cast("SuccessorPart | None", provider("successor"))
    return None if part is None else part.build_successor(tiers)


class LintPart(Protocol):
    """The functions of the module that provides `lint`."""

    def findings_in(self, policy: Policy, document: Document, deployment: Deployment | None) -> list[Problem]:
        """Return every mistake in a policy that loads, at its place; with a deployment, also what that lacks."""

    def is_error(self, code: str) -> bool:
        """Return whether findings with this code are errors."""


def lint_part() -> LintPart | None:
    """Return what finds mistakes in policies; None where this installation has no such part."""
    return cast("LintPart | None", provider("lint"))


class RecorderPart(Protocol):
    """The functions of the module that provides `recorder`."""

    def build_recorder(self, artefacts: Mapping[str, str]) -> DecisionEncoder:
        """Return what encodes a worker's decisions, with the versions of the artefacts that decide, by their names."""


def new_recorder(artefacts: Mapping[str, str]) -> DecisionEncoder | None:
    """Return what encodes a worker's decisions; None where this installation has no such part."""
    part = cast("RecorderPart | None", provider("recorder"))
    return None if part is None else part.build_recorder(artefacts)


class FlightsPart(Protocol):
    """The functions of the module that provides `flights`."""

    def build_flights(self, store: Store, delayed: DelayedWrites) -> SharedFlights:
        """Return a worker's side of sharing flights. It releases leases after the writes in `delayed`."""


def new_flights(store: Store, delayed: DelayedWrites) -> SharedFlights | None:
    """Return a worker's side of sharing flights; None where this installation has no such part."""
    part = cast("FlightsPart | None", provider("flights"))
    return None if part is None else part.build_flights(store, delayed)


class WorkerTask(Protocol):
    """Something that runs from its start to its close."""

    def start(self) -> None:
        """Start it; the event loop runs."""

    async def aclose(self) -> None:
        """End it."""


class TasksPart(Protocol):
    """The functions of a module that provides `tasks`."""

    def build_tasks(self, store: Store, endpoints: Sequence[Endpoint]) -> Mapping[str, WorkerTask]:
        """Return a worker's tasks by their names, in the order in which they start."""


def new_tasks(store: Store, endpoints: Sequence[Endpoint]) -> Iterator[tuple[str, WorkerTask]]:
    """Yield the tasks of all parts in a worker by their names."""
    for part in cast("Sequence[TasksPart]", providers("tasks")):
        yield from part.build_tasks(store, endpoints).items()


class EncodersPart(Protocol):
    """The functions of the module that provides `encoders`."""

    def load_minilm(self, state: Path) -> PublicEncoder:
        """Return the encoder MiniLM; its graph is kept under `state`. Raises EmbedderUnavailable or OSError."""

    def load_pair_scorer(self, folder: Path) -> MeasuredPairScorer:
        """Return the cross-encoder of a folder. Raises CrossEncoderError."""

    def foreign_languages(self) -> ForeignLanguages:
        """Return what reads other languages than English; no files are read yet."""


def encoders_part() -> EncodersPart | None:
    """Return what loads models beside the static vectors; None where this installation has no such part."""
    return cast("EncodersPart | None", provider("encoders"))


def read_other_languages() -> None:
    """Have the part read other languages than English in this process; where it is not installed, nothing does."""
    read_by(lambda: None if (part := encoders_part()) is None else part.foreign_languages())


class PoliciesNeeds(NamedTuple):
    """What the core gives what follows the policies in the store. `state` is a folder for copies.

    The callbacks are called on the event loop: with each set that comes into force and when a failure is corrected,
    with each new failure, and with what an operator should know, once each.
    """

    source: PolicySource
    store: Store
    store_url: str
    state: Path
    reloaded: Callable[[PolicySet], None]
    refused: Callable[[ConfigError], None]
    noted: Callable[[str], None]


class PoliciesPart(Protocol):
    """The functions of the module that provides `policies`."""

    def follow(self, needs: PoliciesNeeds) -> Policies:
        """Return what follows the policies in the store. Raises ConfigError."""

    async def tried(self, policies: Policies, headers: Mapping[bytes, bytes], caller: Caller, live: Policy) -> Policy:
        """Return the policy that a request names in place of the `live` one of its surface. Raises ApiError."""

    async def drift(self, store: Store, source: PolicySource) -> tuple[str, ...]:
        """Return which files say something else than the store has in force. Raises StoreUnavailable."""


def policies_part() -> PoliciesPart | None:
    """Return what knows the policies in the store; None where this installation has no such part."""
    return cast("PoliciesPart | None", provider("policies"))


Whole = Callable[[], Mapping[str, Any] | None]
"""Return an answer once it has ended; None if it is not whole."""


class Take(NamedTuple):
    """What an observer wants of an answer.

    `whole` says whether it will read all of it. `served` is called before the answer is sent, with its request, the
    question's vector, what returns the whole, and the evidence of an answer that is no stream.
    """

    whole: bool
    served: Callable[[RequestContext, Vector | None, Whole, Evidence | None], None]


class Observer(Protocol):
    """What looks at fresh answers. Nothing in it can fail or delay a request."""

    def wants(self, request: RequestContext) -> Sequence[Take]:
        """Return what is wanted of the answer to this request."""

    def start(self) -> None:
        """Start on the running event loop."""

    async def aclose(self) -> None:
        """Stop."""


class ObserverNeeds(NamedTuple):
    """What the core gives observers."""

    deployment: Deployment
    policies: Policies
    tiers: Mapping[str, Tier]
    router: Router
    verifier: AnswerVerifier | None
    store: Store
    telemetry: Telemetry
    metrics: Metrics
    classifier: DifficultyModel
    embedder: PublicEncoder


class ObserversPart(Protocol):
    """The functions of the module that provides `observers`."""

    def build_observers(self, needs: ObserverNeeds) -> Sequence[Observer]:
        """Return a worker's observers, which are not started."""


def new_observers(needs: ObserverNeeds) -> Sequence[Observer]:
    """Return what looks at a worker's answers; nothing where this installation has no such part."""
    part = cast("ObserversPart | None", provider("observers"))
    return () if part is None else part.build_observers(needs)


class PublicRoutersPart(Protocol):
    """The functions of a module that provides `public_routers`."""

    def public_routers(self) -> Sequence[APIRouter]:
        """Return cold routes of the public port; `app.state.steps` are the worker's."""


def public_routers() -> list[APIRouter]:
    """Return the routers of the public port that parts have."""
    parts = cast("list[PublicRoutersPart]", providers("public_routers"))
    return [router for part in parts for router in part.public_routers()]


class OpenApiPart(Protocol):
    """What the module has that provides `openapi`."""

    RESPONSES: dict[int | str, dict[str, Any]]
    """Replies that every route may give, as FastAPI takes them."""

    def add_documents(self, api: FastAPI, title: str, beside: Sequence[Described], *, keyed: bool) -> None:
        """Serve documents of an application's routes and of those `beside` it. `keyed`: requests need a key."""


def openapi_part() -> OpenApiPart | None:
    """Return what describes the applications; None where this installation has no such part."""
    return cast("OpenApiPart | None", provider("openapi"))


class AdminRoutersPart(Protocol):
    """The functions of a module that provides `admin_routers`."""

    def admin_routers(self) -> Sequence[APIRouter]:
        """Return routes of the admin API; `app.state.steps` are the worker's."""


def routers_for_admins() -> list[APIRouter]:
    """Return the routers of the admin API that parts have."""
    parts = cast("list[AdminRoutersPart]", providers("admin_routers"))
    return [router for part in parts for router in part.admin_routers()]


class PolicyLabPart(Protocol):
    """The functions of the module that provides `policy_lab`."""

    def recorded_doubts(
        self, folder: Path, oldest: float | None
    ) -> AbstractContextManager[Callable[[Policy], list[Finding]]]:
        """Return what holds a policy against the ledger's files in a folder, since `oldest`. Raises CommandError."""

    def tests_schema_text(self) -> str:
        """Return the JSON Schema of tests of policies."""


def policy_lab_part() -> PolicyLabPart | None:
    """Return what tries policies before they are in force; None where this installation has no such part."""
    return cast("PolicyLabPart | None", provider("policy_lab"))


class ClientApiNeeds(NamedTuple):
    """What the core gives a worker's further APIs."""

    deployment: Deployment
    store: Store
    secret: bytes
    """Key of the hashes under which the store has what clients are given back."""
    quotas: Mapping[str, Caps]
    """Quotas of what the store keeps for each tenant, by section of the config. They change with the store's memory."""
    embedder: PublicEncoder


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


class ClientApiPart(Protocol):
    """The functions of a module that provides `client_api`."""

    def build_client_api(self, needs: ClientApiNeeds) -> ClientApi:
        """Return a worker's further APIs, which are not started."""


class ClientErrorsPart(Protocol):
    """The functions of a module that provides `client_errors`."""

    def error_body(self, error: ApiError, scope: Any, request_id: str) -> bytes | None:
        """Return the body of an error as an API's clients know it; None for a request of others."""


def client_api_parts() -> Sequence[ClientApiPart]:
    """Return what answers paths beside those of chat completions."""
    return cast("Sequence[ClientApiPart]", providers("client_api"))


def client_error_parts() -> Sequence[ClientErrorsPart]:
    """Return what writes errors for clients of other APIs."""
    return cast("Sequence[ClientErrorsPart]", providers("client_errors"))
