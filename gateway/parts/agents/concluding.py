"""Tell the last request of a session to conclude: no more tools, and an instruction to finish behind the system text.

In the client's own form as well, which a backend of its dialect is sent. Such an answer is neither read from the cache
nor stored in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gateway.request.options import CacheControl

if TYPE_CHECKING:
    from gateway.dialects.native import Native
    from gateway.request.context import RequestContext

CONCLUDE: Final = (
    "This is the last answer of this session: its limit is reached. Call no more tools. From what you have found so "
    "far, give your final answer now: what is done, what was found, and what is left to do."
)
_SYSTEM: Final = ("system", "developer")


def concluded(request: RequestContext) -> RequestContext:
    """Return a request that asks for its session's last answer."""
    body = {**request.body, **_without_calls(request.body)}
    messages = list(body["messages"])
    last = next((at for at, message in enumerate(messages) if message.get("role") not in _SYSTEM), len(messages)) - 1
    if last < 0:
        messages.insert(0, {"role": "system", "content": CONCLUDE})
    else:
        messages[last] = {**messages[last], "content": _with_more(messages[last].get("content"))}
    body["messages"] = messages
    native = None if request.native is None else _native(request.native, added=last < 0)
    options = replace(request.options, cache=CacheControl(read=False, write=False))
    return replace(request, body=body, native=native, options=options)


def _without_calls(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that forbid calls; none where there are no tools, as backends refuse them then."""
    members: dict[str, Any] = {"tool_choice": "none"} if body.get("tools") else {}
    return members | {"function_call": "none"} if body.get("functions") else members


def _with_more(content: Any) -> Any:
    """Return a content with the instruction behind it."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": CONCLUDE}]
    return f"{content}\n\n{CONCLUDE}" if content else CONCLUDE


def _native(native: Native, *, added: bool) -> Native:
    """Return the client's own form; `added`: its translation has got a message at the beginning."""
    body = dict(native.body)
    if native.dialect == "messages":
        body["system"] = _with_more(body.get("system"))
        if body.get("tools"):
            body["tool_choice"] = {"type": "none"}
    elif native.dialect == "responses":
        body["instructions"] = _with_more(body.get("instructions"))
        if body.get("tools"):
            body["tool_choice"] = "none"
    if not added:
        return replace(native, body=body)
    return replace(native, body=body, paths=[native.front, *native.paths], messages=native.messages + 1)
