"""Define the request fields that a deployment or a policy sets: where a request leaves them open, or in any case."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from policies.errors import Edit, Finding, KeyPath
from policies.validation import Section, raise_findings

BOUNDS: Final = ("at_least", "at_most")
"""Members of a value that is no value but limits one, such as `{at_most: 0.7}`."""
REASONING: Final = frozenset({"reasoning_effort", "reasoning", "thinking"})
"""Fields that say, in the words of different providers, how much a model is to reason: whoever gives one gives all."""
_INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "write output.max_tokens, or a backend's max_output"),
    "stop": "write output.stop",
    **dict.fromkeys(("logprobs", "top_logprobs"), "the gateway asks for them where it judges"),
    "model": "write it at the backend",
}
_OF_THE_REQUEST: Final = frozenset(
    {
        "messages", "input", "prompt", "system", "instructions", "stream", "stream_options", "n", "modalities", "audio",
        "tools", "tool_choice", "functions", "function_call", "response_format", "store", "previous_response_id",
        "conversation", "background", *_INSTEAD,
    }
)  # fmt: skip
"""Fields that make another request: routing, the cache and the client have gone by the request's own."""


def is_bound(value: object) -> bool:
    """Return whether a value limits a field instead of giving it."""
    return isinstance(value, Mapping) and bool(value) and set(value) <= set(BOUNDS)


def _may_be_set(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    raise_findings([*_of_the_request(fields), *_wrong_values(fields)])
    return fields


def _of_the_request(fields: Mapping[str, Any]) -> Iterator[Finding]:
    for name in fields:
        if name in _OF_THE_REQUEST:
            why = _INSTEAD.get(name, "it is what the client asks for, and routing and the cache go by it")
            yield Finding(
                (name,), f"{name} cannot be set: {why}", "T105", "leave it out", (Edit((name,)),), of_key=True
            )


def _wrong_values(fields: Mapping[str, Any]) -> Iterator[Finding]:
    for name, value in fields.items():
        at: KeyPath = (name,)
        if not _is_json(value):
            yield Finding(at, f"{value!r} cannot be written as JSON; write a text in quotes, or a number", "T105")
        elif is_bound(value):
            limits = list(value.values())
            if not all(isinstance(limit, int | float) and not isinstance(limit, bool) for limit in limits):
                yield Finding(at, "write numbers for at_least and at_most", "T105")
            elif len(limits) == 2 and value["at_least"] > value["at_most"]:
                yield Finding(at, "at_least is more than at_most", "T105")
        elif isinstance(value, Mapping) and not set(BOUNDS).isdisjoint(value):
            yield Finding(at, "at_least and at_most stand alone: they limit what the client asks for", "T105")


def _is_json(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_json(member) for name, member in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


FieldValues = Annotated[Mapping[str, Any], AfterValidator(_may_be_set)]


class SetFields(Section):
    """Fields of the request to a model, as chat completions name them.

    What is in `set` is sent where the client leaves the field open, what is in `force` in any case; null sends none.
    `{at_most: 0.7}` and `{at_least: 0.2}`, in either, limit what the client asks for.
    """

    set: FieldValues = Field(default={})
    force: FieldValues = Field(default={})
