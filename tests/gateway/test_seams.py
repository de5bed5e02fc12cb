"""The declarations of the seams beside what the parts have, and what a part is given."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway import seams
from gateway.assembly import build
from gateway.backends import server_forms
from gateway.cascade import answer_checks
from gateway.config import loader
from gateway.config.launch import Launch
from gateway.parts.standard import PARTS, providers
from gateway.steps import Steps
from tests.support.gateway import CHAT, config, write_deployment
from tests.support.store import LocalStore

_ELSEWHERE = {"http", "identities"}


def _declared() -> list[tuple[str, Callable[..., Any]]]:
    """Return each function with its seam."""
    return [
        (str(decorator.args[0].value), getattr(module, function.name))
        for module in (seams, server_forms, answer_checks, loader)
        for function in ast.parse(inspect.getsource(module)).body
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and isinstance(decorator.args[0], ast.Constant)
    ]


@pytest.mark.parametrize(("seam", "function"), _declared())
def test_a_part_has_each_function_as_its_seam_declares_it(seam: str, function: Callable[..., Any]) -> None:
    declared = inspect.signature(function)
    for part in providers(seam):
        has = inspect.signature(getattr(part, function.__name__))
        assert list(has.parameters) == list(declared.parameters), part


def test_every_seam_of_a_part_is_declared() -> None:
    assert {seam for part in PARTS for seam in part.provides} == {seam for seam, _ in _declared()} | _ELSEWHERE


async def test_a_worker_has_all_that_its_class_says(tmp_path: Path, store: LocalStore) -> None:
    write_deployment(tmp_path, config("http://127.0.0.1:9/v1", None, store.url), {"chat": CHAT})
    launch = Launch(config=tmp_path / "tierline.yaml", policies=tmp_path / "policies")
    deployment = launch.deployment({})
    steps = build(deployment, launch.policy_source(deployment))
    declared = [*seams.Core.__annotations__, *Steps.__annotations__]
    assert set(vars(steps)) == set(declared)
    made = [name for name in vars(steps) if name in seams.Core.__annotations__]
    assert made == list(seams.Core.__annotations__), "a build may use what is declared above what it makes"
    await steps.store.aclose()
