"""Use the gateway inside a Python program, without a server: the same pipeline, called as the OpenAI SDK is.

    async with Tierline(config="tierline.yaml", policies="policies") as tierline:
        answer = await tierline.chat.completions.create(model="chat", messages=[{"role": "user", "content": "Hi!"}])
        print(answer.choices[0].message.content, answer.headers["x-tierline-path"])

A request takes the steps that it takes over HTTP, from the parsing of its body to the record in the ledger; only the
socket is missing. Cancelling the call, or leaving a stream early, is a client that disconnects.

The gateway is imported when the context is entered, and not with this module, which programs import that ask nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

import orjson

from gateway.errors import RequestTimeout

if TYPE_CHECKING:
    from gateway.request.body import ChatBodies
    from gateway.steps import Steps

_SCOPE: Final = {"type": "http", "method": "POST", "path": "/v1/chat/completions"}
_NOT_GIVEN: Final = frozenset({"NotGiven", "Omit"})
"""Types by which the OpenAI SDK marks an argument that was not given; told by name, as the SDK need not be there."""


_OPTIONAL: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset(names.split())
    for kind, names in {
        "": "metadata moderation obfuscation service_tier system_fingerprint usage",
        "audio": "data expires_at id transcript",
        "choices": "finish_reason logprobs",
        "completion_tokens_details": "accepted_prediction_tokens audio_tokens reasoning_tokens "
        "rejected_prediction_tokens text_tokens",
        "content": "bytes",
        "delta": "audio content function_call refusal role tool_calls",
        "function": "arguments name",
        "function_call": "arguments name",
        "logprobs": "content refusal",
        "message": "annotations audio content function_call refusal tool_calls",
        "prompt_tokens_details": "audio_tokens cache_write_tokens cached_tokens image_tokens text_tokens",
        "refusal": "bytes",
        "tool_calls": "function id type",
        "top_logprobs": "bytes",
        "usage": "completion_tokens_details prompt_tokens_details",
    }.items()
}
"""The members that the OpenAI SDK's objects of a chat completion have whether they were sent or not, by the member
that such an object is, or is one of; '' is the whole. A test holds them to the SDK's types."""


class RequestFailed(Exception):
    """The error reply to a request: its status, the members of OpenAI's error envelope, and the reply's headers."""

    def __init__(self, status: int, error: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(error.get("message", ""))
        self.status_code = status
        self.type = error.get("type")
        self.code = error.get("code")
        self.param = error.get("param")
        self.headers = headers


class Fields(Mapping[str, Any]):
    """A JSON object whose members are attributes as well as items; `to_dict` returns the plain object.

    As in the OpenAI SDK, an optional member that was not sent is None as an attribute; it is no item.
    """

    __slots__ = ("_kind", "_value")

    def __init__(self, value: dict[str, Any], kind: str = "") -> None:
        self._value = value
        self._kind = kind

    def __getitem__(self, name: str) -> Any:
        return _fields(self._value[name], name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            if name in _OPTIONAL.get(self._kind, ()):
                return None
            raise AttributeError(f"the object has no member {name!r}; it has {', '.join(self._value)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._value!r})"

    def to_dict(self) -> dict[str, Any]:
        """Return the object as it was received."""
        return self._value


def _fields(value: Any, kind: str) -> Any:
    if isinstance(value, dict):
        return Fields(value, kind)
    return [_fields(item, kind) for item in value] if isinstance(value, list) else value


class Answer(Fields):
    """A chat completion, with the `headers` of its reply by lower-case name, such as `x-tierline-tier`."""

    __slots__ = ("headers",)

    def __init__(self, value: dict[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(value)
        self.headers = headers


class AnswerStream:
    """The chunks of a streamed chat completion, read once with `async for`; use it as a context to leave it early.

    One that nobody holds any more is left, and so is one that is not read for `limits.stall` seconds: reading it then
    raises RequestFailed.
    """

    def __init__(self, call: _EmbeddedCall) -> None:
        self._call = call
        weakref.finalize(self, call.abandon).atexit = False
        self.headers = call.headers
        """Headers of the reply by lower-case name."""

    async def __aiter__(self) -> AsyncIterator[Fields]:
        from gateway.backends.sse import DONE, EventParser

        parser = EventParser()
        try:
            async for data in self._call.body():
                for event in parser.feed(data):
                    if event == DONE:
                        continue
                    value = orjson.loads(event)
                    if "error" in value:
                        raise RequestFailed(self._call.status, value["error"], self.headers)
                    yield Fields(value)
        finally:
            await self._call.aclose()

    async def aclose(self) -> None:
        """Stop reading; the call to the backend is cancelled unless the answer is complete."""
        await self._call.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Tierline:
    """A gateway in this process. `config` and `policies` are paths; None takes what is shipped with Tierline.

    Entering the context raises ConfigError for an invalid config or policy.
    """

    def __init__(self, config: str | Path | None = None, policies: str | Path | None = None) -> None:
        self._config = None if config is None else Path(config)
        self._policies = None if policies is None else Path(policies)
        self._stack = AsyncExitStack()
        self.chat = Chat()
        """Has `completions.create`, as in the OpenAI SDK."""

    async def __aenter__(self) -> Self:
        from gateway.assembly import build, running
        from gateway.config.launch import Launch

        launch = Launch(config=self._config, policies=self._policies)
        deployment = launch.deployment()
        steps = build(deployment, launch.policy_source(deployment))
        await self._stack.enter_async_context(running(steps))
        self.chat.completions.open(steps)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()


class Chat:
    """The resource `chat` of the OpenAI SDK."""

    def __init__(self) -> None:
        self.completions = Completions()


class Completions:
    """The resource `chat.completions` of the OpenAI SDK."""

    def __init__(self) -> None:
        self._steps: Steps | None = None
        self._bodies: ChatBodies | None = None

    def open(self, steps: Steps) -> None:
        """Answer requests with these steps from now on."""
        from gateway.request.body import ChatBodies

        self._steps, self._bodies = steps, ChatBodies(steps.deployment.limits)

    @overload
    async def create(
        self,
        *,
        model: str,
        messages: Any,
        stream: Literal[False] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Answer: ...

    @overload
    async def create(
        self,
        *,
        model: str,
        messages: Any,
        stream: Literal[True],
        timeout: float | None = None,  # noqa: ASYNC109
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> AnswerStream: ...

    async def create(
        self,
        *,
        model: str,
        messages: Any,
        stream: bool | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's name; it limits the request, not this function
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Answer | AnswerStream:
        """Return an `Answer`, or with `stream` an `AnswerStream`. Raises RequestFailed.

        The arguments are those of the OpenAI SDK, other fields of the request included. `timeout` is in seconds, as
        the header x-tierline-deadline-ms is.
        """
        if self._steps is None or self._bodies is None:
            raise RuntimeError("use Tierline as a context: async with Tierline() as tierline")
        given = {"model": model, "messages": messages, **({} if stream is None else {"stream": stream}), **fields}
        body = {name: value for name, value in given.items() if type(value).__name__ not in _NOT_GIVEN}
        headers = {name.lower(): value for name, value in (extra_headers or {}).items()}
        headers["content-type"] = "application/json"
        if timeout is not None:
            headers.setdefault("x-tierline-deadline-ms", f"{timeout * 1000:.0f}")
        raw = orjson.dumps({**body, **(extra_body or {})}, default=_plain)
        call = _EmbeddedCall(self._steps, self._bodies, headers, raw)
        await call.begun()
        if call.status == 200 and stream:
            return AnswerStream(call)
        value = orjson.loads(b"".join([part async for part in call.body()]))
        if call.status != 200:
            raise RequestFailed(call.status, value["error"], call.headers)
        return Answer(value, call.headers)


def _plain(value: Any) -> Any:
    """Return a value of the SDK, a pydantic model, or any iterable, as one that JSON has. Raises TypeError."""
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Fields):
        return value.to_dict()
    return list(value)


class _EmbeddedCall:
    """One request, answered by a task of its own: the parts of its reply are taken as the reader takes them."""

    def __init__(self, steps: Steps, bodies: ChatBodies, headers: Mapping[str, str], raw: bytes) -> None:
        from gateway.http.exchange import Exchange

        self._raw = raw
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1)
        self._on_gone: Callable[[], None] | None = None
        scope = {**_SCOPE, "headers": [(name.encode("latin-1"), value.encode()) for name, value in headers.items()]}
        self._left = self._stalled = False
        self._loop = asyncio.get_running_loop()
        self._stall_s = steps.deployment.limits.stall
        exchange = Exchange(steps, bodies, scope, self.receive, self._send)
        self._task = asyncio.create_task(exchange.run(), name="tierline.embedded")
        self.status = 0
        self.headers: Mapping[str, str] = {}

    async def receive(self) -> dict[str, Any]:
        """Return the request's body, as an ASGI server does."""
        return {"type": "http.request", "body": self._raw, "more_body": False}

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` once if the caller leaves; see `gateway.request.context.ClientConnection`."""
        self._on_gone = callback
        if self._left and callback is not None:
            asyncio.get_running_loop().call_soon(callback)

    async def _send(self, message: dict[str, Any]) -> None:
        if self._left:
            return
        if not self._parts.full():
            self._parts.put_nowait(message)
            return
        try:
            async with asyncio.timeout(self._stall_s):
                await self._parts.put(message)
        except TimeoutError:
            self._stalled = True
            self._leave()

    async def begun(self) -> None:
        """Wait for the reply's status and headers."""
        start = await self._next()
        self.status = start["status"]
        self.headers = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the parts of the reply's body."""
        more = True
        while more:
            message = await self._next()
            more = message.get("more_body", False)
            yield message.get("body", b"")
        await self._task

    async def _next(self) -> dict[str, Any]:
        if self._stalled:
            message = f"The stream was not read for {self._stall_s:g} seconds (limits.stall), so its request was ended."
            raise RequestFailed(
                408, {"message": message, "type": RequestTimeout.type, "code": RequestTimeout.code}, self.headers
            )
        try:
            return await self._parts.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Leave, as a client does that disconnects; return when the request is over. Safe to call twice."""
        self._leave()
        await asyncio.wait({self._task})

    def abandon(self) -> None:
        """Leave soon, from any thread, unless the request is over: nobody can read its reply any more."""
        if not self._task.done():
            with contextlib.suppress(RuntimeError):  # the event loop is closed, and the request with it
                self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._left = True
        callback, self._on_gone = self._on_gone, None
        if callback is not None and not self._task.done():
            callback()
        if not self._parts.empty():
            self._parts.get_nowait()  # what is being sent waits for this room
