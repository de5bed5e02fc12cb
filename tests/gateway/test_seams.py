"""The declarations of the seams beside what the parts have, and what a part is given."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gateway.assembly import build
from gateway.config.launch import Launch
from gateway.parts.standard import PARTS, providers
from gateway.steps import Core, Steps
from tests.support.gateway import CHAT, ROOT, config, write_deployment
from tests.support.store import LocalStore

_ELSEWHERE = {"several_servers", "reading"}


def _declared() -> list[tuple[str, Callable[..., Any]]]:
    """Return each function with its seam."""
    files = [file for file in (ROOT / "gateway").rglob("*.py") if "parts" not in file.relative_to(ROOT).parts]
    return [
        (
            str(decorator.args[0].value),
            getattr(import_module(".".join(file.relative_to(ROOT).with_suffix("").parts)), name),
        )
        for file in files
        for name, decorator in _decorators(ast.parse(file.read_text()))
        if ast.unparse(decorator.func) in {"one", "every"} and isinstance(decorator.args[0], ast.Constant)
    ]


def _decorators(module: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for function in module.body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((function.name, each) for each in function.decorator_list if isinstance(each, ast.Call))


@pytest.mark.parametrize(("seam", "function"), _declared())
def test_a_part_has_each_function_as_its_seam_declares_it(seam: str, function: Callable[..., Any]) -> None:
    declared = inspect.signature(function).parameters.values()
    given = [parameter.name for parameter in declared if parameter.kind is not parameter.KEYWORD_ONLY]
    named = {parameter.name: None for parameter in declared if parameter.kind is parameter.KEYWORD_ONLY}
    for part in providers(seam):
        inspect.signature(getattr(part, function.__name__)).bind(*given, **named)


def test_every_seam_of_a_part_is_declared() -> None:
    assert {seam for part in PARTS for seam in part.provides} == {seam for seam, _ in _declared()} | _ELSEWHERE


async def test_a_worker_has_all_that_its_class_says(tmp_path: Path, store: LocalStore) -> None:
    write_deployment(tmp_path, config("http://127.0.0.1:9/v1", None, store.url), {"chat": CHAT})
    launch = Launch(config=tmp_path / "tierline.yaml", policies=tmp_path / "policies")
    deployment = launch.deployment({})
    steps = build(deployment, launch.policy_source(deployment))
    declared = [*Core.__annotations__, *Steps.__annotations__]
    assert set(vars(steps)) == set(declared)
    made = [name for name in vars(steps) if name in Core.__annotations__]
    assert made == list(Core.__annotations__), "a build may use what is declared above what it makes"
    await steps.store.aclose()
