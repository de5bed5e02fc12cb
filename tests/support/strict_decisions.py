"""A scripted server of the decisions API on a real socket: it takes what the openai SDK's types describe, and no more.

with StrictDecisions() as server:
    server.p = 0.9                              # of every predicate; None refuses to answer
    ...                                         # talk to server.url
    assert server.refused == []
"""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pydantic
from openai.types.decision import Decision
from openai.types.decision_create_params import DecisionCreateParams
from pydantic_core import ValidationError

from tests.support.connection import Received
from tests.support.upstream import Reply, Upstream, error_reply

_TYPE: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(DecisionCreateParams)
_FIELDS = frozenset(get_type_hints(DecisionCreateParams))


class StrictDecisions(Upstream):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.p: float | None = 0.9
        self.refused: list[str] = []

    def reply_to(self, request: Received) -> Reply:
        """The decision, checked against the SDK's type too; 400 for what the API does not take."""
        try:
            _TYPE.validate_python(request.body)
            unknown = sorted(set(request.body) - _FIELDS)
            if unknown or not request.path.endswith("/v1/decisions"):
                raise ValueError(f"{request.path} {unknown}")
        except (ValidationError, ValueError) as error:
            self.refused.append(str(error))
            return error_reply(400)
        self.requests.append(request)
        answers = [
            {"type": "refusal", "name": question.get("name")}
            if self.p is None
            else {"type": "predicate", "name": question.get("name"), "probability": self.p}
            for question in request.body["questions"]
        ]
        usage = {
            "input_tokens": 40, "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
            "output_tokens": 0, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 40,
        }  # fmt: skip
        value = {"answers": answers, "model": request.body["model"], "usage": usage}
        Decision.model_validate(value)
        return Reply(body=json.dumps(value).encode())
