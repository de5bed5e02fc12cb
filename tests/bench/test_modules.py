"""The modules that a request passes, and the longest chain of imports."""

from __future__ import annotations

from graphlib import CycleError
from itertools import pairwise
from pathlib import Path

import pytest

from tests.bench import modules


def test_the_longest_chain_is_found() -> None:
    """It goes by imports, not by names; a cycle is refused."""
    imported = {"a": {"b", "d"}, "b": {"c"}, "c": set[str](), "d": {"b"}, "e": {"c"}}
    assert modules.longest_chain(imported) == ["a", "d", "b", "c"]
    with pytest.raises(CycleError):
        modules.longest_chain({"a": {"b"}, "b": {"a"}})


def test_serving_modules_import_no_cycle() -> None:
    """The graph of ours has a chain, of which each module imports the next; no offline tool is in it."""
    imported = modules.imports()
    chain = modules.longest_chain(imported)
    assert all(below in imported[above] for above, below in pairwise(chain))
    assert "gateway.pipeline" in imported
    assert not any("offline" in module for module in imported)


@pytest.mark.long
@pytest.mark.timeout(60)
def test_a_miss_passes_the_pipeline_and_no_command(tmp_path: Path) -> None:
    """Every miss goes through the pipeline, the cascade and the cache; none through the command line."""
    often, _ = modules.passed(tmp_path)
    assert {"gateway.pipeline", "gateway.cascade.runner", "cache.response_cache", "routing.decide"} <= set(often)
    assert not any(module.startswith("gateway.cli") for module in often)
