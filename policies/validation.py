"""Validate a YAML document against a model: every pydantic error becomes a Problem with its line, key and a hint.

`Section` is the base class of the models of a policy file. Its values have notations of their own: durations are
written `400ms`, `6s`, `24h` and stored in seconds; shares are written `1%` or `0.01` and stored as 0..1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from policies import ADDED
from policies.errors import Edit, Finding, InvalidContent, KeyPath, Problem, did_you_mean, dotted
from policies.expression import Expression, ExpressionError
from policies.quantities import read_duration, read_number, read_share
from policies.yaml_source import Document


def rule(value: object) -> Expression:
    """Convert a written rule to an expression. Raises ValueError."""
    if isinstance(value, Expression):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a rule; write an expression such as 'tokens_in < 3000', or 'otherwise'")
    return Expression.parse(value)


def knows(values: Collection[str]) -> Callable[[Expression], Expression]:
    """Return a validator that refuses rules that read other names than these."""

    def check(rule: Expression) -> Expression:
        unknown = sorted(rule.names.difference(values), key=lambda name: rule.start_of(name) or 0)
        if unknown:
            named = ", ".join(f"{name!r}{did_you_mean(name, values)}" for name in unknown)
            message = f"{rule.source!r} asks for {named}; a rule here knows {', '.join(sorted(values))}"
            at, near = rule.start_of(unknown[0]), get_close_matches(unknown[0], list(values), n=1)
            instead = None
            if near and at is not None and rule.source.startswith(unknown[0], at):
                instead = rule.source[:at] + near[0] + rule.source[at + len(unknown[0]) :]
            raise ExpressionError(message, at, instead)
        return rule

    return check


Seconds = Annotated[float, BeforeValidator(read_duration), Field(ge=0)]
Share = Annotated[float, BeforeValidator(read_share), Field(ge=0, le=1, allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(read_number)]


def validator_of(notation: Any) -> Any:
    """Return the function that reads a notation, such as Seconds."""
    return next(part.func for part in notation.__metadata__ if isinstance(part, BeforeValidator))


class Section(BaseModel):
    """A part of a policy file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, defer_build=True)

    @classmethod
    def model_of(cls, value: Any) -> type[Section]:
        """Return the model that a value is validated as: this one, or one below it that the value names."""
        return cls


S = TypeVar("S", bound=Section)
Model = TypeVar("Model", bound=BaseModel)


class Extended(Section):
    """A whole file, to which parts add sections."""

    def of(self, kind: type[S]) -> S:
        """Return the file as the class `kind` of a part's sections, through which they are read. Raises TypeError."""
        if not isinstance(self, kind):
            raise TypeError(f"this {type(self).__name__} has no {kind.__name__}")
        return self


Refuse = Callable[[KeyPath, Any], str | None]
"""Maps (key path, value) to why a file may not contain it, or None. For keys that only the loader may set."""

_FINDINGS = "findings"
# Pydantic's messages name Python types, which a YAML author need not know.
_LIST, _MAPPING = "write a list, such as [a, b]", "write keys with their values, such as {a: b}"
_MISSING = "required, but missing"
_PLAIN_WORDS = {
    "tuple_type": _LIST,
    "frozen_set_type": _LIST,
    "mapping_type": _MAPPING,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
}


def raise_findings(findings: Iterable[Finding | tuple[KeyPath, str]]) -> None:
    """Raise one validation error for all findings, if any, from a validator that compares keys with each other.

    Each finding is then reported at its own key rather than at the model. Its path, and those of its edits, begin at
    the value that is validated.
    """
    if made := [Finding(*finding) for finding in findings]:
        summary = "; ".join(finding.message for finding in made)
        raise PydanticCustomError(_FINDINGS, "{summary}", {"summary": summary, _FINDINGS: made})


def validate(model: type[Model], document: Document, refuse: Refuse = lambda _path, _value: None) -> Model:
    """Return the document as a `model`. Raises InvalidContent with all problems."""
    problems: list[Problem] = []
    value = _without_refused(document.value, (), document, refuse, problems)
    try:
        valid = model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems += [problem for detail in _without_echoes(details) for problem in _problems(model, detail, document)]
        # A key that is missing only because its name is misspelt is told once.
        renamed = {dotted((*edit.path[:-1], edit.rename)) for fault in problems for edit in fault.edits if edit.rename}
        problems = [problem for problem in problems if problem.code != "T104" or problem.key not in renamed]
        raise InvalidContent(sorted(problems, key=lambda problem: (problem.line, problem.column))) from None
    if problems:
        raise InvalidContent(problems)
    return valid


def check_part(model: type[Model], document: Document, refuse: Refuse = lambda _path, _value: None) -> None:
    """Check a document that holds only some of a model's keys. Raises InvalidContent with all problems."""
    try:
        validate(model, document, refuse)
    except InvalidContent as error:
        # What a model's keys must be together is not checked while one of them is missing.
        if problems := [problem for problem in error.problems if problem.code != "T104"]:
            raise InvalidContent(problems) from None


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
            problems.append(document.locate(Finding(here, reason, "T107", "", (Edit(here),), of_key=True)))
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
    """Return the problems of one of pydantic's errors: each with its place and what to write instead."""
    kind, context = detail["type"], detail.get("ctx", {})
    path = tuple(detail["loc"]) if kind == "missing" else _path_in_file(detail["loc"], document)
    if kind == _FINDINGS:
        return [document.locate(_below(finding, path)) for finding in context[_FINDINGS]]
    reading = ADDED.reading()
    if kind in ("extra_forbidden", "missing"):
        unknown = kind == "extra_forbidden"
        wrong = Finding(path, "unknown key", "T103", of_key=True) if unknown else Finding(path, _MISSING, "T104")
        return [document.locate(wrong if reading is None else reading.mended_key(wrong, model, document))]
    error = context.get("error")
    message = _PLAIN_WORDS.get(kind) or detail["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    code, at = ("T106", error.at) if isinstance(error, ExpressionError) else ("T105", None)
    mend, edits = (
        ("", ()) if reading is None else reading.mend_of_value(path, document.at(path), kind, context, message)
    )
    return [document.locate(Finding(path, message, code, mend, edits, at))]


def _below(finding: Finding, path: KeyPath) -> Finding:
    """Return the finding of a value at `path`, with paths from the top of the file."""
    edits = tuple(replace(edit, path=(*path, *edit.path)) for edit in finding.edits)
    return finding._replace(path=(*path, *finding.path), edits=edits)


def _path_in_file(loc: KeyPath, document: Document) -> KeyPath:
    """Return pydantic's location without the parts that are not in the file (`[key]`, a union branch's name)."""
    path: KeyPath = ()
    for part in loc:
        if (*path, part) in document.places:
            path = (*path, part)
    return path
