"""Carry what chat completions cannot express from a client to a backend of the same dialect, and back.

A translation gives two values: the body of a chat completion, and beside it the request's own form, a `Native`. They
travel side by side (`RequestContext.native`, `BackendRequest.native`), so that nothing in a client's JSON can be taken
for it. A backend of that dialect sends the client's own body, with the gateway's changes, instead of translating it
back; any other backend leaves it out and reports `lost` as dropped.

An answer of such a backend holds its own form too, in `message[NATIVE]` or `delta[NATIVE]`: a list of the dialect's
events, which joins like any list when chunks are assembled. Only a request of the same dialect gets one, and a backend
whose replies are passed on as they come has that key removed from them (`gateway.backends.openai`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

from cache.planning.plan import counted
from policies.value_type import value_type

NATIVE: Final = "x_tierline_native"
"""Key of an answer's own form in a message and a delta."""
_NOT_OPTIONS: Final = frozenset({"messages", "input", "model", "client_metadata"})
"""Fields of a body that are its conversation, are the surface, or say who asks."""
_OF_THIS_ITEM: Final = frozenset({"id", "status"})
"""Members of an item of a Responses body that no model is shown."""

_BILLING: Final = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")


def _same_path(_: Native, path: str) -> str:
    return path


@value_type
class Native:
    """The own form of a request whose client does not speak chat completions."""

    dialect: str
    """Its name, which a kind of backend has too that speaks it; `chat`, of chat completions, is none."""
    body: Mapping[str, Any]
    """The client's body, less what the gateway sets itself."""
    lost: Mapping[str, Any]
    """The fields that the translation could not express: values by path."""
    paths: Sequence[Any] = ()
    """Where each message of the translation comes from, see `client_path`."""
    needs: frozenset[str] = frozenset()
    """Capabilities (`routing.features.FURTHER`) without which a tier could not answer."""
    messages: int = 0
    """How many messages the translation has, to tell those that the gateway adds."""
    protocol: Mapping[str, str] = field(default_factory=dict)
    """The client's `anthropic-version`, `anthropic-beta` and other `anthropic-` headers, by name."""
    forms: Sequence[Any] = ()
    """Place and type of each block that became a text: requests that differ in these alone have one translation."""
    path_in: Callable[[Native, str], str] = _same_path
    """Returns the path in `body` of a field of the translation, see `client_path`."""
    given: frozenset[str] = frozenset()
    """Fields that the body gives and its translation does not, as chat completions name them."""
    turns: str = "input"
    """Key of `body` that holds the conversation."""
    front: Any = None
    """What `paths` holds for a system message that is put in front of the others."""

    def options(self) -> dict[str, Any]:
        """Return what sets this request apart from others with the same translation, its conversation left out.

        This and `conversation` are part of the request's fingerprint: an answer is shared within one dialect only.
        """
        body = {name: value for name, value in counted(self.body).items() if name not in _NOT_OPTIONS}
        if "system" in body:
            body["system"] = without_billing_line(body["system"])
        lost = counted(self.lost)
        return {"dialect": self.dialect, "body": body, "lost": lost, "forms": self.forms, "protocol": self.protocol}

    def conversation(self) -> Any:
        """Return the conversation as it would be sent, less the ids that differ each time it is had."""
        items = self.body.get(self.turns, ())  # a stored prompt needs none
        return [
            {name: value for name, value in item.items() if name not in _OF_THIS_ITEM} if type(item) is dict else item
            for item in items
        ]


def native_body(native: Native | None, dialect: str) -> Mapping[str, Any] | None:
    """Return the client's own body if the client speaks this dialect, else None."""
    return native.body if native is not None and native.dialect == dialect else None


def lost_fields(native: Native | None, dialect: str) -> tuple[str, ...]:
    """Return the paths of the client's fields that the translation loses for a backend of this dialect."""
    return tuple(native.lost) if native is not None and native.dialect != dialect else ()


def without_billing_line(system: Any) -> Any:
    """Return the system text of a Messages request without Claude Code's billing line, which differs each time.

    It says nothing to a model, and stands at the very beginning, so that no prefix cache would ever hold.
    """
    if isinstance(system, str):
        return _BILLING.sub("", system)
    if not isinstance(system, list):
        return system
    for i, block in enumerate(system):
        text = block.get("text") if isinstance(block, dict) else None
        if isinstance(text, str) and _BILLING.match(text):
            rest = _BILLING.sub("", text)
            return [*system[:i], *([{**block, "text": rest}] if rest else ()), *system[i + 1 :]]
    return system


def client_path(native: Native | None, path: str) -> str:
    """Return the client's path of a field of its translated body; the same for a body that was not translated.

    A backend reports what it could not say, and what it refuses, by its path in the chat-completions body. A translated
    body knows where its parts come from: `paths` of its `Native` holds the origin of each message, and `path_in` finds
    the rest in the client's own body. Paths are turned only where there are any to report, so that no other request
    pays.
    """
    return path if native is None else native.path_in(native, path)


def client_paths(native: Native | None, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the client's paths of fields of its translated body, each once."""
    return tuple(dict.fromkeys(client_path(native, path) for path in paths))


_SYSTEM: Final = frozenset({"system", "developer"})
_SEPARATOR: Final = "\n\n"


# What the gateway sets goes into both bodies. A backend of the client's dialect is sent the client's own, where a field
# that is set is written in that API's words, by its kind (`BackendConfig.with_fields`).


def with_changes(body: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with these fields; those that are None are left out."""
    return {name: value for name, value in {**body, **changes}.items() if value is not None or name not in changes}


def instructed(
    body: Mapping[str, Any], native: Native | None, instruction: str
) -> tuple[Mapping[str, Any], Native | None]:
    """Return a chat-completions body with the instruction at the end of its system text, and its client's own form.

    Where there is no system text, a system message is put in front, and the own form's `paths` begin with one for it.
    """
    messages = list(body["messages"])
    for i, message in enumerate(messages):
        if message.get("role") in _SYSTEM:
            messages[i] = {**message, "content": longer_text(message.get("content"), instruction)}
            return {**body, "messages": messages}, native
    changed = {**body, "messages": [{"role": "system", "content": instruction}, *messages]}
    if native is None:
        return changed, None
    return changed, replace(native, paths=(native.front, *native.paths))


def longer_text(content: Any, instruction: str) -> Any:
    """Return the content of a message with the instruction at its end."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": instruction}]
    return f"{content}{_SEPARATOR}{instruction}" if content else instruction
