"""Translate for the clients of OpenAI's Responses API, with what the gateway keeps of earlier responses."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import orjson

from gateway.dialects.native import Native
from gateway.errors import ApiError, InvalidRequest, UpstreamFailed
from gateway.off_loop import off_loop
from gateway.parts.apis.dialects.responses.compaction import (
    FIELDS,
    TRIGGERED_FIELDS,
    CompactionEvents,
    asked_of,
    is_compaction,
    is_trigger,
    opened_summary,
    sealed,
)
from gateway.parts.apis.dialects.responses.events import ResponseEvents
from gateway.parts.apis.dialects.responses.items import Json, listed_item, usage_object, without_encrypted
from gateway.parts.apis.dialects.responses.reading import (
    ENCRYPTED,
    LOGPROBS,
    chat_request,
    check_limits,
    entries_of,
    is_reference,
    missing,
    unsupported,
    wrong_type,
)
from gateway.parts.apis.dialects.responses.response_object import (
    ItemIds,
    ResponseHead,
    response_error,
    response_of_item,
    whole_response,
)

_STATE: Final = "a store (store.url in the config) and a policy that keeps responses (state.responses)"
_OF_MESSAGE: Final = frozenset({"type", "background", "generate", "stream_id"})
_NOTHING: Final[tuple[str, Json]] = ("input", {"role": "user", "content": ""})
"""Stands for the input of a request that has none and wants no answer, so that its other members are checked."""
_MANY_ITEMS: Final = 1_000
"""A conversation of more items is translated in a thread: some 3 ms for this many."""


class PastResponses(Protocol):
    """Responses of one deployment that clients may refer to."""

    @property
    def configured(self) -> bool:
        """Whether responses can be kept, as there is a store."""

    async def conversation(self, tenant: str, response_id: str) -> tuple[list[Json], list[str]] | None:
        """Return all items of the conversation that ends with a response, and its responses' ids, oldest first.

        None if one of them is not kept (any more). Raises ApiError if the store does not answer.
        """

    async def items(self, tenant: str, wanted: Mapping[str, str]) -> dict[str, Json]:
        """Return items by their ids, those that are kept; `wanted` has the id of the response of each.

        Raises ApiError if the store does not answer.
        """

    def keep(self, tenant: str, response: Json, given: Sequence[Json], before: Sequence[str], ttl_s: float) -> None:
        """Keep a response for a time in seconds, with the items it was `given` and the ids of those `before` it."""


class PastConversations(Protocol):
    """Conversations of one deployment that clients may refer to, by tenant and id."""

    async def open(self, tenant: str, conversation_id: str, hold_s: float) -> Sequence[Json]:
        """Return a conversation's items. Until `close`, for `hold_s` seconds, no other request gets it.

        Raises ApiError.
        """

    def append(self, tenant: str, conversation_id: str, items: Sequence[Json], ttl_s: float) -> None:
        """Add items to an open conversation, and keep it for a time in seconds from now."""

    def close(self, tenant: str, conversation_id: str) -> None:
        """Let other requests open the conversation again."""


class Lifetime(NamedTuple):
    """What a policy says of its responses, in seconds: how long they are kept, 0 for not at all, and their deadline."""

    kept_s: float
    deadline_s: float


NOT_KEPT: Final = Lifetime(0.0, 0.0)
"""That of a request whose model is unknown, which is refused by that alone."""
LifetimeOf = Callable[[str], Lifetime | None]
"""Gives the lifetime of responses to a `model`; None for no such model."""


class ResponsesClient:
    """Translate one request and its reply. It implements `gateway.parts.apis.dialects.client.ClientDialect`."""

    def __init__(
        self,
        past: PastResponses,
        lifetime: LifetimeOf,
        *,
        conversations: PastConversations | None = None,
        secret: bytes = b"",
        compacts: bool = False,
        recent: dict[str, list[Json]] | None = None,
        messages: int,
        hosted: bool = False,
        unshared: Container[str] = (),
    ) -> None:
        """Take what is kept. `messages` is the most that a conversation may have.

        `unshared`: tenants whose clients are told of backends' prompt caches.

        `secret`: what compactions are encrypted with. `compacts`: whether the request asks for one.
        `recent`: of a WebSocket, whose requests come as messages: all items up to its last response, if it is not kept.

        `hosted`: whether a backend of this API is configured, which can honour what chat completions cannot express.
        """
        self._past = past
        self._lifetime = lifetime
        self._conversations = conversations
        self._secret = secret
        self.compacts = compacts
        self._recent = recent
        self._items: list[Json] = []
        self._previous = ""
        """Id of the response that the request goes on from."""
        self.generates = True
        """Whether an answer is wanted; without one (`generate: false`) a response is prepared that can be continued."""
        self._conversation = ""
        """Id of the open one."""
        self._most = messages
        self._hosted = hosted
        self._unshared = unshared
        self.owner = ""
        """Whose responses, conversations and compactions it may refer to, and whose its own will be; its tenant's where
        not set."""
        self._ids = ItemIds()
        self._head: ResponseHead | None = None
        self.background = False
        """Whether the client wants to leave, and to come back for the response."""
        self.given: list[Json] = []
        """The items of this request alone."""
        self._before: list[str] = []
        self.ttl_s = self._conversation_s = 0.0
        self._over = self._triggered = False
        self._users: list[Json] = []
        """The user's messages of a conversation that is compacted."""
        self._logprobs = self._encrypted = False

    async def read(self, body: dict[str, Any], tenant: str, *, large: bool) -> tuple[dict[str, Any], Native, bool]:
        """See `ClientDialect.read`. A small request may continue a conversation that makes it large."""
        self.owner = self.owner or tenant
        if self._recent is not None:
            body = self._of_message(body)
        if self.compacts:
            body = {**{name: value for name, value in body.items() if name in FIELDS}, "store": False}
        lifetime = self._kept_for(body)
        self.ttl_s = lifetime.kept_s
        entries = await off_loop(partial(entries_of, body)) if large else entries_of(body)
        references = {at: item for at, item in entries if is_reference(item)}
        if references:
            referenced = await self._referenced(references)
            entries = [(at, referenced.get(at, item)) for at, item in entries]
        if entries and is_trigger(entries[-1][1]):
            self.compacts = self._triggered = True
            body = {name: value for name, value in body.items() if name in TRIGGERED_FIELDS}
            del entries[-1]
        self.given = [item for _, item in entries]
        previous = body.get("previous_response_id")
        if (named := body.get("conversation")) is not None:
            entries = [*await self._begin(named, body, lifetime), *entries]
        elif previous is not None:
            earlier = await self._earlier(previous)
            entries = [(f"previous[{i}]", item) for i, item in enumerate(earlier)] + entries
        if self._recent is not None:
            self._items = [item for _, item in entries]
        if any(is_compaction(item) for _, item in entries):
            entries = [(at, self._expanded(at, item) if is_compaction(item) else item) for at, item in entries]
        if self.compacts and entries:
            check = partial(chat_request, {}, entries, hosted=True, kept=False)
            await off_loop(check) if large else check()
            self._users = [listed_item(item, self._ids.new("message")) for _, item in entries if _is_users(item)]
            entries = [("input", asked_of(entries))]
        entries = self._some(entries, body)
        translate = partial(chat_request, body, entries, hosted=self._hosted, kept=self.ttl_s > 0)
        large = large or len(entries) > _MANY_ITEMS
        chat, native, names = await off_loop(translate) if large else translate()
        check_limits(chat["messages"], self._most)
        include = body.get("include") or ()
        self._encrypted = ENCRYPTED in include
        self._logprobs = LOGPROBS in include or bool(body.get("top_logprobs"))
        self.background = body.get("background") is True
        if self.background and not self.ttl_s and lifetime is not NOT_KEPT:
            raise unsupported("background", f"needs `store` not to be false, {_STATE}.")
        hides = tenant not in self._unshared
        self._head = ResponseHead(body, self._ids, store=self.ttl_s > 0, names=names, hides_cache=hides)
        if self._conversation:
            self._head.belongs_to(self._conversation)
        return chat, native, large

    def _of_message(self, message: Json) -> Json:
        """Return the body of a request that came as a message of a WebSocket. Raises InvalidRequest."""
        self._previous = str(message.get("previous_response_id"))
        self.generates = message.get("generate") is not False
        return _body_of(message)

    def _some(self, entries: list[tuple[str, Any]], body: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the input, or what stands for one that may be empty. Raises InvalidRequest where one is needed."""
        if entries or (self.generates and body.get("prompt") is not None):
            return entries
        if not self.generates:
            return [_NOTHING]
        raise missing("input") if body.get("input") is None else unsupported("input", "must have at least one item.")

    def close(self, *, failed: bool = False) -> None:
        """End the request's use of its conversation, once its reply is out or has failed.

        As the API has it, a connection forgets the response that a request went on from if that request `failed`.
        """
        if failed and self._recent is not None:
            self._recent.pop(self._previous, None)
        if self._conversation and self._conversations is not None:
            self._conversations.close(self.owner, self._conversation)

    def path_of(self, path: str) -> str:
        """See `ClientDialect.path_of`."""
        return path

    def limited(self, tokens: int) -> None:
        """Say the limit in the Response object, which has a place for it."""
        self._begun().limit(tokens)

    def whole(self, completion: Mapping[str, Any]) -> bytes:
        """Return the Response object of a whole reply, as JSON, and keep it if it is to be kept."""
        head = self._begun()
        response = whole_response(completion, head, logprobs=self._logprobs)
        if self._triggered:
            response = {
                **response,
                "output": [{**self._compaction(_text_in(response)), "id": self._ids.new("compaction")}],
            }
        elif self.compacts:
            return orjson.dumps(self._compacted(response))
        self._keep(response)
        if not self._encrypted:
            response = {**response, "output": [without_encrypted(item) for item in response["output"]]}
        return orjson.dumps(response)

    def stream(self) -> ResponseEvents | CompactionEvents:
        """Return the writer of a streamed reply."""
        events = ResponseEvents(self._begun(), self._keep, logprobs=self._logprobs, encrypted=self._encrypted)
        return CompactionEvents(events, self._compaction) if self._triggered else events

    def prepared(self) -> bytes:
        """Return the events of a response that has no output, for a request that wants no answer."""
        return ResponseEvents(self._begun(), self._keep).prepared()

    def error(self, error: ApiError) -> bytes:
        """Return OpenAI's error envelope, which this API has too; a response in the background is kept as failed."""
        if self.background and self._head is not None:
            members = {"code": error.code, "message": error.message}
            self._keep(self._head.of("failed", error=response_error(members)))
        return error.body()

    def at(self, status: str) -> Json:
        """Return the Response object at a status before any output: `queued` or `in_progress`."""
        return self._begun().of(status)

    def cancel(self) -> None:
        """Keep the response as cancelled, whatever comes of it later."""
        self._keep(self._begun().of("cancelled"))

    def _expanded(self, at: str, item: Json) -> Json:
        """Return the message that a compaction stands for. Raises InvalidRequest."""
        message = opened_summary(self._secret, self.owner, item)
        if message is None:
            what = "was not made here for this key's team or tenant, or was changed since."
            raise unsupported(f"{at}.encrypted_content", what)
        return message

    def _compacted(self, response: Json) -> Json:
        """Return a compaction of the conversation, by the response that sums it up. Raises UpstreamFailed."""
        item = self._compaction(_text_in(response))
        return {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [*self._users, {"id": self._ids.new("compaction"), **item}],
            "usage": response["usage"] or usage_object({"prompt_tokens": 0, "completion_tokens": 0}),
        }

    def _compaction(self, summary: str) -> Json:
        """Return the item that stands for a conversation with this summary, without an id. Raises UpstreamFailed."""
        if not summary:
            raise UpstreamFailed("The model gave no summary of the conversation.")
        return {"type": "compaction", "encrypted_content": sealed(self._secret, self.owner, summary)}

    def _begun(self) -> ResponseHead:
        if self._head is None:  # the error of a stream whose request could not be read
            self._head = ResponseHead({}, self._ids, store=False)
        return self._head

    def _keep(self, response: Json) -> None:
        if self._over or (response["status"] == "failed" and not self.background):
            return
        self._over = True
        if self.ttl_s > 0:
            self._past.keep(self.owner, response, self.given, self._before, self.ttl_s)
        elif self._recent is not None:
            self._recent.clear()
            self._recent[response["id"]] = [*self._items, *response["output"]]
        if self._conversation and self._conversations is not None and response["status"] in ("completed", "incomplete"):
            items = [*self.given, *response["output"]]
            self._conversations.append(self.owner, self._conversation, items, self._conversation_s)

    def _kept_for(self, body: Mapping[str, Any]) -> Lifetime:
        """Return for how many seconds the response is to be kept. Raises InvalidRequest."""
        store, model = body.get("store"), body.get("model")
        if store is not None and type(store) is not bool:
            raise wrong_type("store", "a boolean")
        lifetime = self._lifetime(model) if type(model) is str else None
        if lifetime is None:
            return NOT_KEPT
        for name in ("store", "conversation"):
            if body.get(name) and not lifetime.kept_s:
                raise unsupported(name, f"needs {_STATE}, and nothing is kept here.")
        if body.get("conversation") is not None:
            self._conversation_s = lifetime.kept_s
        return lifetime._replace(kept_s=0.0) if store is False else lifetime

    async def _begin(self, named: Any, body: Mapping[str, Any], lifetime: Lifetime) -> list[tuple[str, Json]]:
        """Open the conversation that a request names, and return its items with their paths. Raises ApiError."""
        conversation_id = named.get("id") if type(named) is dict else named
        if type(conversation_id) is not str:
            raise wrong_type("conversation", "a conversation's id, or an object with it")
        if body.get("previous_response_id") is not None:
            raise unsupported("previous_response_id", "cannot be given together with conversation.")
        if lifetime is NOT_KEPT:
            return []
        if self._conversations is None or not self._conversation_s:
            raise unsupported("conversation", f"needs {_STATE}, and nothing is kept here.")
        items = await self._conversations.open(self.owner, conversation_id, lifetime.deadline_s)
        self._conversation = conversation_id
        return [(f"conversation[{i}]", item) for i, item in enumerate(items)]

    async def _earlier(self, previous: Any) -> list[Json]:
        """Return the items of the conversation so far. Raises InvalidRequest if it is not kept."""
        if type(previous) is not str:
            raise wrong_type("previous_response_id", "a string")
        if self._recent is not None and (items := self._recent.get(previous)) is not None:
            self.given = [*items, *self.given]  # all that a response which is kept now has of those before it
            return items
        forgotten = self._recent is not None and not self._past.configured
        conversation = None if forgotten else await self._past.conversation(self.owner, previous)
        if conversation is None:
            raise InvalidRequest(
                f"Previous response with id {previous!r} not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        items, self._before = conversation
        return items

    async def _referenced(self, references: Mapping[str, Any]) -> dict[str, Json]:
        """Return the items that references name, by their paths. Raises InvalidRequest if one of them is not kept."""
        ids: dict[str, str] = {}
        for at, item in references.items():
            item_id = item.get("id")
            if type(item_id) is not str:
                raise missing(f"{at}.id") if item_id is None else wrong_type(f"{at}.id", "a string")
            ids[at] = item_id
        wanted = {item_id: made for item_id in ids.values() if (made := response_of_item(item_id)) is not None}
        items = await self._past.items(self.owner, wanted) if wanted else {}
        for at, item_id in ids.items():
            if item_id not in items:
                raise InvalidRequest(f"Item with id {item_id!r} not found.", code="item_not_found", param=at)
        return {at: items[item_id] for at, item_id in ids.items()}


def _body_of(message: Json) -> Json:
    """Return the body of a request that came as a message. Raises InvalidRequest."""
    if message.get("type") != "response.create":
        raise unsupported("type", "must be response.create.")
    for name in ("background", "stream_id"):
        if message.get(name):
            raise unsupported(name, "is not supported over WebSockets here; leave it out.")
    return {**{name: value for name, value in message.items() if name not in _OF_MESSAGE}, "stream": True}


def _is_users(item: Any) -> bool:
    return type(item) is dict and item.get("role") == "user" and (item.get("type") or "message") == "message"


def _text_in(response: Json) -> str:
    """Return the text of a response's messages."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part.get("text", "") for part in parts)
