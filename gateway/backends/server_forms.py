"""Define what the part that provides `servers` makes for one backend: what its server wants otherwise than others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gateway.dialects.told_lengths import Lengths
from gateway.parts.standard import one

if TYPE_CHECKING:
    from gateway.backends.base import Backend, BackendRequest, BadStatus
    from gateway.dialects.reasoning import Maker


class FieldMemory(Protocol):
    """Remembers which request fields one backend's model refuses.

    How a refused field is noted is its own affair: `refused` returns such notes, `remember` and `also` take them.
    """

    until: Mapping[Any, float]
    """The fields that are left out, each with the time until which it is."""

    def names(self) -> list[str]:
        """Return the paths of what is left out now."""

    def left_out(
        self, body: dict[str, Any], also: Sequence[Any] = (), *, held: bool = False
    ) -> tuple[dict[str, Any], list[str]]:
        """Return a copy of the body without refused fields, and their paths. `also` holds for this body alone.

        Of a `held` answer what is refused of streams alone is kept: it is asked for whole.
        """

    def asks_for(self, body: Mapping[str, Any], path: str) -> bool:
        """Return whether the field at this path of a body asks the model for anything."""

    def refused(self, status: int, error: bytes, body: Mapping[str, Any], also: Sequence[Any]) -> Refused:
        """Return which fields the model refuses, by the error with which it answered this body.

        `also` was left out of the body already.
        """

    def remember(self, fields: Iterable[Any]) -> None:
        """Leave these fields out from now on: the request without them was answered."""


Refused = tuple[Sequence[Any], bool]
"""Fields that can be left out of another try, and whether another model may take what this one refuses."""


Header = Callable[[str], str | None]
"""Returns a header of a reply by its name."""
Unit = Literal["requests", "tokens_in", "tokens_out"]


class Quota:
    """Track what is left of an endpoint's rate limits, from the headers of its replies; here nothing is known of it."""

    __slots__ = ()
    tight: bool = False
    """Whether so little is left that `wait_s` must be checked before a call."""

    def heard(self, header: Header, now: float) -> None:
        """Record the limits in a reply's headers."""

    def refused(self, header: Header, now: float) -> None:
        """Record the limits in an error reply."""

    def spent(self, tokens_in: int) -> None:
        """Subtract a call being made, until a reply reports the new remainder."""

    def pause(self, seconds: float, now: float) -> None:
        """Allow no call for this many seconds, as a sibling worker reports that nothing is left of the quota."""

    def wait_s(self, now: float, tokens_in: int = 0) -> float:
        """Return the seconds until a call with a prompt of this many tokens may be made: 0 if now, at most 60."""
        return 0.0

    def own_wait_s(self, now: float, tokens_in: int = 0) -> float:
        """Return the same wait from this worker's own replies alone, to report to sibling workers."""
        return 0.0

    def headroom(self, now: float) -> dict[Unit, tuple[float, float | None]]:
        """Return what is left of each rate limit, and of how much if that is known; empty where it says none."""
        return {}


RefusalVerdict = Literal["", "cannot", "callers"]


class Doubt(Protocol):
    """One refusal in words that no rule knows."""

    @property
    def callers(self) -> bool:
        """Whether every tier refused such a request lately."""

    def decide(self, verdict: RefusalVerdict) -> None:
        """Store the verdict for further refusals in the same words."""


class Refusals(Protocol):
    """Remembers what one backend refused that no rule knows, and what came of it at the next tier."""

    def words(self, error: BadStatus, body: Mapping[str, object]) -> str:
        """Return an error's words without what they may quote of the request."""

    def heard(self, error: BadStatus, tenant: str, body: Mapping[str, object]) -> Doubt:
        """Count a refusal of a tenant's request, and return it."""

    def shown(self) -> list[dict[str, Any]]:
        """Return what was refused in the last hours, the latest first: status, words, count, and what it meant."""


class RefusedKinds(Protocol):
    """Remembers the kinds of requests that one tier has refused and another has answered."""

    @property
    def kinds(self) -> Mapping[Any, Any]:
        """What is remembered; empty for nearly all tiers, which then need not be asked."""

    def note(self, tenant: str, body: Mapping[str, object], needed: Set[str], tools: int) -> None:
        """Remember that a request was refused; one that needs no capability is of no kind."""

    def has(self, tenant: str, body: Mapping[str, object], needed: Set[str], tools: int) -> bool:
        """Return whether such a request was refused in the last ten minutes."""


class ChatForms(Protocol):
    """Brings requests of chat completions into the form that one server takes."""

    remembers: bool
    """Whether there is anything to be put back into conversations (`restored`)."""
    usual: ReplyForms
    """What reads most replies; it keeps nothing of them."""

    async def restored(self, request: BackendRequest) -> BackendRequest:
        """Return a request of a conversation with what its messages lack of this model's reasoning."""

    def learns(self, refusal: Mapping[str, Any]) -> bool:
        """Return whether an error object tells something new of the server, so that another try may be answered."""

    def prepare(self, payload: dict[str, Any], request: BackendRequest) -> tuple[ReplyForms | None, tuple[str, ...]]:
        """Change a body in place; return what reads its reply (None: `usual`) and the paths of what is not sent."""


class ChunkMender(Protocol):
    """Brings the calls and the ends of one stream into form."""

    holds: bool
    """Whether `end` has something to give."""

    def mend(self, choices: list[dict[str, Any]]) -> bool:
        """Change the choices of a chunk that calls tools or ends, in place; return whether anything had to be changed.

        Raises AnswerFailed.
        """

    def end(self) -> list[dict[str, Any]]:
        """Return the choices of a last chunk, with the finish reasons that were held, once. Raises AnswerFailed."""


class ReplyForms(Protocol):
    """Brings one reply into the form that clients know, in place. Methods return whether they changed anything."""

    watched: frozenset[str]
    """Keys of which a delta must have one to be given to `change`. They may be others after each."""
    mends: bool
    """Whether there is anything to do in `over`."""

    def whole(self, completion: dict[str, Any]) -> bool:
        """Change a whole answer, with a list of objects as its choices. Raises AnswerFailed."""

    def standardise(self, value: dict[str, Any]) -> bool:
        """Rename the token counts in the usage of a completion or chunk to OpenAI's names."""

    def join(self, delta: dict[str, Any]) -> bool:
        """Join the content of a stream's delta to one string, where the server sends a list of parts."""

    def change(self, delta: dict[str, Any], *, first: bool) -> bool:
        """Bring one delta of a stream into form; `first`: it belongs to the first choice."""

    def mender(self) -> ChunkMender:
        """Return what mends one stream's chunks that call tools or end."""

    def over(self) -> None:
        """Finish, as the stream is closed and no more chunks will come."""


Note = dict[str, Any]
"""Reasoning of one message: `message`, its own members, and `calls`, what single calls carry, by their place."""


class CallMemory(Protocol):
    """Keeps a note for each tool call, by `space` (a conversation at one backend) and the call's id."""

    def start(self) -> None: ...

    async def aclose(self) -> None: ...

    def keep(self, space: str, call_id: str, note: Note | None) -> None:
        """Keep the note of an answer, None for one that has no reasoning. The store has it soon after."""

    async def find(self, space: str, call_ids: Sequence[str]) -> Mapping[str, Note]:
        """Return the notes that there are, by the ids that were asked for; none if the store does not answer."""


class PromptCacheFacts(Protocol):
    """Says how requests can ask for the prompt cache of one model's provider."""

    @property
    def form(self) -> str:
        """How a request asks for the cache; `key`: by a key, requests with the same one sharing a cache."""

    @property
    def longest(self) -> str:
        """The longest lifetime of a cached prompt that can be asked for, such as `1h`; '' if there is no choice."""

    def worth(self, tokens: int, tools: int) -> bool:
        """Return whether a prompt of about so many tokens and tools may be long enough to be cached."""

    def ask(self, key: str, *, goes_on: bool, long: bool) -> PromptCacheAsk:
        """Return what one call sends to have its prompt cached; calls with one `key` share a cache.

        `goes_on`: the conversation will likely go on, so that its turns are sent again. `long`: for the longest
        lifetime.
        """


class PromptCacheAsk(Protocol):
    """What one call asks of its provider's prompt cache."""

    least: int
    """The least tokens that are cached."""
    goes_on: bool
    added: tuple[str, ...]
    """What the request was given for it."""

    @property
    def control(self) -> dict[str, str]:
        """The value of the markers (`cache_control`) that ask for it."""

    def add_fields(self, body: dict[str, Any]) -> None:
        """Add fields to a request of chat completions or of the Responses API, in place, unless it has its own."""

    def left_out(self, paths: Iterable[str]) -> None:
        """Note that fields at these paths were not sent after all, as the model refuses them."""


@one("servers")
def prompt_cache_facts(provider: str, model: str, omit: tuple[str, ...]) -> PromptCacheFacts | None:
    """Return what is known of a model of this provider, '' if it is not known; None if nothing is to be asked for."""


@one("servers")
def always_thinks(model: str) -> bool:
    """Return whether it is known of a model that its thinking cannot be switched off."""
    return False


@one("servers")
def new_field_memory(backend: str) -> FieldMemory | None:
    """Return what remembers the fields that the backend of this name refuses."""


@one("servers")
def new_refusals(clock: Callable[[], float]) -> Refusals | None:
    """Return what remembers one backend's refusals that no rule knows; without, the next tier is asked each time."""


@one("servers")
def new_refused_kinds(clock: Callable[[], float]) -> RefusedKinds | None:
    """Return what remembers the kinds of requests that one tier refuses."""


@one("servers")
def lengths_in(body: bytes) -> Lengths:
    """Return the figures at the beginning of the body of an error; without, none."""
    return Lengths()


@one("servers")
def new_quota() -> Quota:
    """Return what reads a backend's rate limits from its replies."""
    return Quota()


@one("servers")
def adapted(backend: Backend, rename: Mapping[str, str], omit: frozenset[str]) -> Backend:
    """Return a backend that sends fields under another name, or not at all; without, they go out as they came."""
    return backend


@one("servers")
def chat_forms(
    model: str, maker: Maker, *, one_system: bool, custom_tools: bool, calls: CallMemory | None
) -> ChatForms | None:
    """Return what brings chat completions into the form that the server of a model takes.

    `one_system`: whether it knows one system message only, at the beginning. `custom_tools`: whether it knows tools
    that take a free text. `calls` keeps the reasoning of tool calls for clients that do not.
    """


@one("servers")
def maker_finder() -> Callable[[Sequence[Any]], str | None] | None:
    """Return what finds the name of the maker of a conversation's latest sealed reasoning, None if it has none."""
