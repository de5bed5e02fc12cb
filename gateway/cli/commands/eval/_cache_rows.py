"""Read labelled pairs of requests, and plan each request as the gateway does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cache.planning.plan import Planner
from gateway.config.schema import Limits
from gateway.errors import InvalidRequest
from gateway.request.body import ChatBodies
from offline.datasets import DataError, json_lines
from offline.evaluation.pairs import Asked
from policies.model import Policy
from routing.embedding.embedder import Embedder
from routing.features import features_of

_SHOWN = 80
_BODIES = ChatBodies(Limits())
_TENANT = "evaluation"

Messages = str | tuple[dict[str, Any], ...]
"""A single question, or the messages of a conversation."""


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One pair. `same`: the answer to `a` may be served for `b`."""

    group: str
    a: Messages
    b: Messages
    same: bool


def read_rows(path: Path, group: str | None, limit: int, seed: int) -> list[CacheRow]:
    """Return the pairs in a file of JSON lines, gzipped or not: of `group` if given, and `limit` random ones (0: all).

    Raises DataError.
    """
    rows = list(_rows(path))
    if not rows:
        raise DataError(f"{path}: no rows")
    if group is not None:
        groups = sorted({row.group for row in rows})
        rows = [row for row in rows if row.group == group]
        if not rows:
            raise DataError(f"{path}: no group {group!r}; there are: {', '.join(groups)}")
    if 0 < limit < len(rows):
        chosen = np.random.default_rng(seed).choice(len(rows), limit, replace=False)
        rows = [rows[i] for i in np.sort(chosen)]
    return rows


def _rows(path: Path) -> Iterator[CacheRow]:
    for place, line in json_lines(path):
        try:
            yield _row(line)
        except (ValueError, InvalidRequest) as error:
            raise DataError(f"{place}: {error}") from None


def _row(line: bytes) -> CacheRow:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"a row is an object, this is {_shown(row)}")
    if missing := [name for name in ("a", "b", "same_answer") if name not in row]:
        raise ValueError(f"{' and '.join(missing)} missing; a row has a, b and same_answer")
    if not isinstance(row["same_answer"], bool):
        raise ValueError(f"same_answer is true or false, not {_shown(row['same_answer'])}")
    group = row.get("group", row.get("dataset", "all"))
    return CacheRow(str(group), _messages(row["a"], "a"), _messages(row["b"], "b"), row["same_answer"])


def _messages(value: object, name: str) -> Messages:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} holds a lone surrogate, which is half a character") from None
        return value
    if not isinstance(value, list):
        raise ValueError(f"{name} is a question or a list of messages, not {_shown(value)}")
    try:
        raw = orjson.dumps({"model": "m", "messages": value})
    except orjson.JSONEncodeError as error:
        raise ValueError(f"{name}: {error}") from None
    try:
        return tuple(_BODIES.parse(raw)["messages"])
    except InvalidRequest as error:
        raise ValueError(f"{name}: {error.message}") from None


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class Requests:
    """Plan the texts of pairs as requests of one tenant to one surface, as the gateway plans requests."""

    def __init__(self, policy: Policy, embedder: Embedder) -> None:
        self._policy = policy
        self._planner = Planner(
            b"", f"{embedder.name}/{embedder.dimension}", embedder.whole_chars, {}, lambda owner, surface: 0
        )
        self._questions: dict[str, Asked] = {}

    def asked(self, messages: Messages) -> Asked:
        """Return the planned request of one side of a pair."""
        if not isinstance(messages, str):
            return self._planned(list(messages))
        question = self._questions.get(messages)
        if question is None:
            question = self._questions[messages] = self._planned([{"role": "user", "content": messages}])
        return question

    def _planned(self, messages: list[dict[str, Any]]) -> Asked:
        body = {"model": self._policy.surface, "messages": messages}
        facts = features_of(body)
        plan = self._planner.plan(body, self._policy, _TENANT, facts, model=self._policy.surface)
        return Asked.of(plan, facts.text)
