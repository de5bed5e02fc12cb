"""Send requests to the gateway as any client does, and read its replies part by part. The playground's way to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import orjson

_CONNECT_S: Final = 2.0
_SILENCE_S: Final = 120.0
"""Longest wait for the next byte. The gateway ends a request at its deadline; this is for one that hangs."""
_OK: Final = 200
_MOST_REPLY: Final = 1 << 20
_READY_S: Final = 0.5
"""Longest wait for `/readyz`: a page is shown without it."""
_TAIL: Final = ": x-tierline-"
_TODO: Final[Mapping[int, str]] = {
    400: "Change the prompt or the choice.",
    401: "Set `console: {gateway_key_env: VAR}` to a variable with a tenant's key.",
    403: "Let the tenant of that key try policies: `tenants: {NAME: {may_try: true}}` in the gateway's config.",
    404: "Reload this page: what is in force may have changed.",
    413: "Shorten the prompt (`limits.body` in the gateway's config).",
    429: "Every backend asks for a pause; wait, and send again.",
    502: "See on the request's page which backend failed, and how.",
    503: "The gateway or its backends are at their limit, or it stops; wait, and send again.",
    504: "See on the request's page where the time went.",
}


class GatewayFailure(Exception):
    """A request that the gateway did not answer whole: what happened, and what to do.

    `reached` is whether the gateway got it, so that it is recorded.
    """

    def __init__(self, what: str, todo: str, *, reached: bool = True) -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo
        self.reached = reached


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """What came at one moment: facts about the reply (names of headers without `x-tierline-`), text, or its end.

    The fact `thinking` stands for thinking of a model that reasons, which is not shown.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    finish: str = ""
    tokens: tuple[int, int] | None = None
    """Tokens of the prompt and of the answer."""


class GatewayClient:
    """A client of one gateway. It sends the key that it is given, and no other credentials."""

    def __init__(self, url: str, key: str = "") -> None:
        """Prepare requests to `url`, the gateway's address without a path; nothing is sent yet."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(_SILENCE_S, connect=_CONNECT_S),
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def readiness(self) -> Mapping[str, Any]:
        """Return the body of `/readyz` of one worker: its `status` alone where details need the admin's key.

        Raises GatewayFailure where there is no answer in half a second, or none of a gateway.
        """
        todo = "See whether it runs, and whether `console.gateway` names it."
        try:
            reply = await self._client.get("/readyz", timeout=_READY_S)
        except httpx2.HTTPError as error:
            what = f"The gateway at {self.url} does not answer ({str(error) or f'nothing within {_READY_S:g} s'})."
            raise GatewayFailure(what, todo, reached=False) from None
        return _object(reply.content)

    async def ask(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> AsyncIterator[ReplyPart]:
        """Send a chat completion; yield what comes as it comes. Raises GatewayFailure."""
        request = self._client.stream("POST", "/v1/chat/completions", json=dict(body), headers=dict(headers))
        begun = False
        try:
            async with request as reply:
                begun = True
                yield ReplyPart(_facts(reply.headers))
                if reply.status_code != _OK:
                    raise _refused(reply.status_code, await _read(reply))
                if body.get("stream"):
                    async for part in _events(reply):
                        yield part
                else:
                    yield _whole(await _read(reply))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            what = f"The gateway at {self.url} cannot be reached ({error or 'no answer in time'})."
            todo = "See whether it runs, and whether `console.gateway` names it."
            raise GatewayFailure(what, todo, reached=False) from None
        except httpx2.TimeoutException:
            what = f"Nothing came from the gateway for {_SILENCE_S:.0f} s."
            raise GatewayFailure(what, "See its log: a request should have ended at its policy's deadline.") from None
        except httpx2.HTTPError as error:
            when = "in the middle of the reply" if begun else "before a reply"
            what = f"The connection to the gateway broke {when} ({type(error).__name__})."
            raise GatewayFailure(what, "See whether the gateway was stopped, and send again.") from None


def _facts(headers: httpx2.Headers) -> dict[str, str]:
    named = {name.removeprefix("x-tierline-"): value for name, value in headers.items() if "tierline" in name}
    return named | ({"request-id": headers["x-request-id"]} if "x-request-id" in headers else {})


async def _read(reply: httpx2.Response) -> bytes:
    """Return a body of at most 1 MiB. Raises GatewayFailure for a longer one."""
    body = bytearray()
    async for part in reply.aiter_bytes():
        body += part
        if len(body) > _MOST_REPLY:
            raise GatewayFailure("The answer is longer than 1 MiB.", "Ask for fewer tokens.")
    return bytes(body)


async def _events(reply: httpx2.Response) -> AsyncIterator[ReplyPart]:
    """Yield the parts of a stream of server-sent events. Raises GatewayFailure where it does not end whole."""
    length = 0
    async for line in reply.aiter_lines():
        if line.startswith(_TAIL):
            pairs = (pair.partition("=") for pair in line[2:].split() if "=" in pair)
            yield ReplyPart({name.removeprefix("x-tierline-"): value for name, _, value in pairs})
        elif line == "data: [DONE]":
            return
        elif line.startswith("data: "):
            length += len(line)
            if length > _MOST_REPLY:
                raise GatewayFailure("The stream is longer than 1 MiB.", "Ask for fewer tokens.")
            if (part := _part(_object(line[6:].encode()))) is not None:
                yield part
    raise GatewayFailure("The stream ended before it was whole.", "See on the request's page what broke it off.")


def _part(chunk: Mapping[str, Any]) -> ReplyPart | None:
    """Return what a chunk says; None for nothing. Raises GatewayFailure for an error."""
    if "error" in chunk:
        raise GatewayFailure(_message(chunk), "See on the request's page which backend failed, and how.")
    usage, choices = chunk.get("usage"), chunk.get("choices") or ()
    deltas = [choice.get("delta") or {} for choice in choices]
    text = "".join(delta.get("content") or delta.get("refusal") or "" for delta in deltas)
    thinks = any(delta.get("reasoning_content") or delta.get("reasoning") for delta in deltas)
    finish = next((choice["finish_reason"] for choice in choices if choice.get("finish_reason")), "")
    if not text and not finish and not usage and not thinks:
        return None
    return ReplyPart({"thinking": "1"} if thinks else {}, text, finish, _tokens(usage))


def _whole(body: bytes) -> ReplyPart:
    value = _object(body)
    choice: Mapping[str, Any] = next(iter(value.get("choices") or ()), {})
    message = choice.get("message") or {}
    text = message.get("content") or message.get("refusal") or ""
    return ReplyPart(text=text, finish=choice.get("finish_reason") or "", tokens=_tokens(value.get("usage")))


def _tokens(usage: Mapping[str, Any] | None) -> tuple[int, int] | None:
    return None if not usage else (usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0)


def _refused(status: int, body: bytes) -> GatewayFailure:
    try:
        said = _message(_object(body))
    except GatewayFailure:
        said = ""
    what = f"The gateway answered {status}: {said}" if said else f"The gateway answered {status}, without a reason."
    return GatewayFailure(what, _TODO.get(status, ""))


def _object(body: bytes) -> Mapping[str, Any]:
    """Return a JSON object. Raises GatewayFailure for anything else."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise GatewayFailure("The reply is not what a gateway sends.", "See whether `console.gateway` names one.")
    return value


def _message(value: Mapping[str, Any]) -> str:
    error = value.get("error")
    return str(error.get("message") or error.get("code") or "") if isinstance(error, dict) else str(error)
