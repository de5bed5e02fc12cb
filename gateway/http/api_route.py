"""Serve routes outside the pipeline with FastAPI: who asks, the body, and what is wrong with it, as everywhere else.

FastAPI calls a route's function with what its parameters name. `Served` and `CallerOf` are dependencies. A parameter
whose type is a `Body` is the request's JSON. It is read within the limits of other bodies and parsed by their rules
(`gateway.request.body`), and what is wrong with it is told in OpenAI's envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, ClassVar, Final

from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.requests import Request
from starlette.responses import Response

from gateway.caller import ANYBODY, Caller
from gateway.errors import InvalidRequest
from gateway.http.messages import read_body
from gateway.request.options import known_headers
from gateway.steps import Steps

SMALL: Final = 4096
"""Most bytes of a body that names things only."""
_EXPECTED: Final = {"string": "a string", "bool": "a boolean", "float": "a number", "int": "an integer"}


async def _steps(request: Request) -> Steps:
    steps: Steps = request.app.state.steps
    return steps


async def _caller(request: Request) -> Caller:
    """Return who asks, as the application's `admit` says. Raises Unauthorized."""
    caller: Caller = await request.app.state.admit(request)
    return caller


Served = Annotated[Steps, Depends(_steps)]
"""The worker's steps."""
CallerOf = Annotated[Caller, Depends(_caller)]
"""Who asks the public port."""


class Body(BaseModel):
    """The JSON object that a request sends.

    `most_bytes`: its longest text; None for the limit of chats. `typed`: whether it must say that it is JSON, which a
    page of another site may not. `nulls`: whether null stands for a key that is left out.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    most_bytes: ClassVar[int | None] = SMALL
    typed: ClassVar[bool] = False
    nulls: ClassVar[bool] = False
    unknown: ClassVar[str] = "Unknown key {0!r}; known are {1}."

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in sorted(value.keys() - cls.model_fields.keys()):
            message = cls.unknown.format(name, ", ".join(sorted(cls.model_fields)))
            raise InvalidRequest(message, code="unsupported_value", param=name)
        # What narrows a change must not be lost: a purge with `"tenant": null` is not one of all tenants.
        if not cls.nulls:
            for name in (name for name in value if value[name] is None):
                message = f"{name!r} is null; leave it out, or give it a value."
                raise InvalidRequest(message, code="invalid_type", param=name)
        return value


class BodyRoute(APIRoute):
    """A route whose `Body`, where it has one, is read and parsed as any other request's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the coroutine function that answers a request."""
        handle = super().get_route_handler()
        model = self.body_field.field_info.annotation if self.body_field is not None else None
        most, typed = getattr(model, "most_bytes", None), getattr(model, "typed", False)

        async def answer(request: Request) -> Response:
            return await handle(request if model is None else _BodyRequest(request, most, typed=typed))

        return answer


class _BodyRequest(Request):
    """A request whose body FastAPI asks for before it solves the dependencies: who may not send one is refused here."""

    def __init__(self, request: Request, most: int | None, *, typed: bool) -> None:
        super().__init__(request.scope, request.receive)
        self._most = most
        self._typed = typed
        self._value: Mapping[str, Any] = {}

    async def body(self) -> bytes:
        """Read and parse the body, a large one only if the gateway has room. Raises ApiError and ClientGone."""
        state = self.app.state
        if self._most is None and state.sheds:
            state.steps.gate.check()
        asks: object = await state.admit(self)
        caller = asks if isinstance(asks, Caller) else ANYBODY
        steps: Steps = state.steps
        limit = steps.deployment.limits.body if self._most is None else self._most
        headers, typed = known_headers(self.scope["headers"]), state.typed or self._typed
        raw = await read_body(self.receive, headers, limit, steps.gate, typed=typed, caller=caller)
        self._value, self.state.large = await state.bodies.read_object(raw)
        return raw

    async def json(self) -> Mapping[str, Any]:
        """Return what `body` parsed."""
        return self._value


def as_invalid_request(error: RequestValidationError) -> InvalidRequest:
    """Return the error of the first field of a body or a query that is not as it must be."""
    first = error.errors()[0]
    kind, name = first["type"], ".".join(str(step) for step in first["loc"][1:])
    if kind == "missing":
        return InvalidRequest(f"Missing required parameter: {name!r}.", code="missing_required_parameter", param=name)
    if kind == "string_pattern_mismatch":  # the one pattern of texts is that they are not blank
        return InvalidRequest(f"{name} is required, as text.", code="missing_required_parameter", param=name)
    if (expected := _EXPECTED.get(kind.removesuffix("_type"))) is not None:
        return InvalidRequest(f"Invalid type for {name!r}: expected {expected}.", code="invalid_type", param=name)
    return InvalidRequest(f"{name}: {first['msg']}.", code="unsupported_value", param=name)
