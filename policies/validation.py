"""Validate a YAML document against a model: every pydantic error becomes a Problem with its line, key and a hint."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from policies.errors import InvalidContent, KeyPath, Problem, did_you_mean
from policies.yaml_source import Document

Model = TypeVar("Model", bound=BaseModel)

Refuse = Callable[[KeyPath, Any], str | None]
"""Maps (key path, value) to why a file may not contain it, or None. For keys that only the loader may set."""

Finding = tuple[KeyPath, str]
"""(path below the value being checked, message)."""

_FINDINGS = "findings"
# Pydantic's messages name Python types, which a YAML author need not know.
_LIST, _MAPPING = "write a list, such as [a, b]", "write keys with their values, such as {a: b}"
_PLAIN_WORDS = {
    "tuple_type": _LIST,
    "frozen_set_type": _LIST,
    "mapping_type": _MAPPING,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
}


def raise_findings(findings: list[Finding]) -> None:
    """Raise the findings of a validator that compares keys, so that each is reported at its own key."""
    if findings:
        summary = "; ".join(message for _, message in findings)
        raise PydanticCustomError(_FINDINGS, "{summary}", {"summary": summary, _FINDINGS: findings})


def validate(model: type[Model], document: Document, refuse: Refuse = lambda _path, _value: None) -> Model:
    """Return the document as a `model`. Raises InvalidContent with all problems."""
    problems: list[Problem] = []
    value = _without_refused(document.value, (), document, refuse, problems)
    try:
        valid = model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems += [problem for detail in _without_echoes(details) for problem in _problems(model, detail, document)]
        raise InvalidContent(sorted(problems, key=lambda problem: problem.line)) from None
    if problems:
        raise InvalidContent(problems)
    return valid


def _without_refused(value: Any, path: KeyPath, document: Document, refuse: Refuse, problems: list[Problem]) -> Any:
    if isinstance(value, list):
        return [_without_refused(item, (*path, i), document, refuse, problems) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    allowed = {}
    for key, item in value.items():
        here = (*path, key)
        reason = refuse(here, item)
        if reason is None:
            allowed[key] = _without_refused(item, here, document, refuse, problems)
        else:
            problems.append(document.problem(here, reason))
    return allowed


def _without_echoes(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out "too short" for lists that are too short only because an item is invalid, which is reported already."""
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(other is not detail and other["loc"][: len(detail["loc"])] == detail["loc"] for other in details)
    ]


def _problems(model: type[BaseModel], detail: ErrorDetails, document: Document) -> list[Problem]:
    path = _path_in_file(detail["loc"], document)
    kind = detail["type"]
    if kind == _FINDINGS:
        return [document.problem((*path, *below), message) for below, message in detail["ctx"][_FINDINGS]]
    if kind == "extra_forbidden":
        section = _section_at(model, path[:-1])
        known = section.model_fields if section else {}
        return [document.problem(path, "unknown key" + did_you_mean(str(path[-1]), known))]
    if kind == "missing":
        return [document.problem(tuple(detail["loc"]), "required, but missing")]
    message = _PLAIN_WORDS.get(kind) or detail["msg"].removeprefix("Value error, ")
    return [document.problem(path, message[:1].lower() + message[1:])]


def _path_in_file(loc: KeyPath, document: Document) -> KeyPath:
    """Return pydantic's location without the parts that are not in the file (`[key]`, a union branch's name)."""
    path: KeyPath = ()
    for part in loc:
        if (*path, part) in document.lines:
            path = (*path, part)
    return path


def _section_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """Return the model that describes the mapping at `path`, to list its keys; None if there is none."""
    annotation: Any = model
    for part in path:
        annotation = _unwrap(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model_field = annotation.model_fields.get(str(part))
            if model_field is None:
                return None
            annotation = model_field.annotation
        elif get_origin(annotation) is not None:
            annotation = get_args(annotation)[1 if issubclass(get_origin(annotation), Mapping) else 0]
        else:
            return None
    annotation = _unwrap(annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _unwrap(annotation: Any) -> Any:
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            annotation = next(part for part in get_args(annotation) if part is not type(None))
        else:
            return annotation
