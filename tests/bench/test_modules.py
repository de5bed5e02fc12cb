"""The numbers that may fall and not grow, how they are counted, and the modules that a request passes."""

from __future__ import annotations

import ast
import json
from graphlib import CycleError
from itertools import pairwise
from pathlib import Path

import pytest

from tests.bench import budgets, covered, parts, ratchets


def test_nothing_has_grown() -> None:
    """Lines, the chain of imports, private names and ask-like helpers stand at what is kept, or below."""
    assert ratchets.grown(ratchets.sizes() | parts.sizes(), ratchets.kept()) == []


def test_a_module_belongs_to_its_folder() -> None:
    """What stands in no part's folder is the core."""
    owners = {
        "gateway.parts.console.views.usage": "console",
        "gateway.parts.standard.PARTS": "",
        "gateway.parts": "",
        "gateway.parts.access.quotas.exchange": "access",  # a file of Lua
        "gateway.pipeline": "",
    }
    assert {name: parts.part_of(name) for name in owners} == owners


def test_each_imported_name_is_counted() -> None:
    """Also those that are imported in a function or for types alone."""
    tree = ast.parse("import a.b as c\nif T:\n  from d import e, f as g\ndef late():\n  from h.i import j")
    assert sorted(parts._imported(tree)) == ["a.b", "d.e", "d.f", "h.i.j"]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_worker_is_counted_with_the_parts_and_without(tmp_path: Path) -> None:
    """The copy without the parts' folders answers by itself, and loads no more than the whole."""
    counts = parts.loaded(tmp_path)
    assert 150 < counts["worker's modules, core alone"] <= counts["worker's modules"]
    assert 20_000 < counts["worker's lines, core alone"] <= counts["worker's lines"]


def test_a_number_that_grew_is_named_with_what_to_do() -> None:
    """A larger number and one that nothing is kept for are a line each; an equal or smaller one is none."""
    found = {"lines": 11, "names": 5, "helpers": 4, "new": 1}
    grown, new = ratchets.grown(found, {"lines": 10, "names": 5, "helpers": 6})
    assert grown.startswith("lines: 11, at most 10 kept. Take as much away, or raise the number by hand")
    assert new.startswith("new: 1, and no number is kept for it")


def test_numbers_are_lowered_and_never_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller number is written; a larger one and one that was not counted stay as they were."""
    file = tmp_path / "ratchets.json"
    file.write_text(json.dumps({"lines": 10, "names": 5, "modules": 7}))
    monkeypatch.setattr(ratchets, "KEPT", file)
    ratchets.lower({"lines": 9, "names": 6})
    assert ratchets.kept() == {"lines": 9, "names": 5, "modules": 7}


def test_the_longest_chain_is_found() -> None:
    """It goes by imports, not by names; a cycle is refused."""
    imported = {"a": {"b", "d"}, "b": {"c"}, "c": set[str](), "d": {"b"}, "e": {"c"}}
    assert ratchets.longest_chain(imported) == ["a", "d", "b", "c"]
    with pytest.raises(CycleError):
        ratchets.longest_chain({"a": {"b"}, "b": {"a"}})


def test_the_chain_is_of_the_whole_tree() -> None:
    """Each module imports the next as it is imported itself; the console and the commands are in the graph."""
    imported = ratchets.imports()
    assert all(below in imported[above] for above, below in pairwise(ratchets.longest_chain(imported)))
    assert {"gateway.pipeline", "gateway.parts.console.server", "gateway.cli.commands.serve"} <= set(imported)
    assert "gateway.server.app" not in imported["gateway.cli.commands.serve"]  # imported inside a function


def test_private_names_of_libraries_are_found() -> None:
    """Behind a library's name, in an import of it, and on an object where none of ours has such an attribute."""
    tree = ast.parse(
        "import os, lib\nfrom lib._inner import Thing\nfrom ours import here\n"
        "lib._one, Thing.x._two, os._exit, here._three, self._four, self._mine"
    )
    assert sorted(ratchets._foreign(tree, {"_mine", "_three"}, {"ours"})) == [
        "_four",
        "_one",
        "_two",
        "lib._inner: _inner",
    ]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_miss_passes_the_pipeline_and_no_command(tmp_path: Path) -> None:
    """Every miss goes through the pipeline, the cascade and the cache; none through the command line."""
    with budgets.servers(tmp_path) as (_, ours):
        often = budgets.modules_of_a_miss(ours)
    assert {"gateway.pipeline", "gateway.cascade.runner", "cache.response_cache", "routing.decide"} <= set(often)
    assert not any(module.startswith("gateway.cli") for module in often)


def test_branches_that_are_taken_no_more_are_named() -> None:
    """The percents are of each package's branches, rounded down; one below its floor is a line."""
    report = {
        "files": {
            "cache/read.py": {"summary": {"covered_branches": 1, "num_branches": 3}},
            "cache/store/base.py": {"summary": {"covered_branches": 1, "num_branches": 3}},
            "gateway/cascade/call.py": {"summary": {"covered_branches": 2, "num_branches": 2}},
            "gateway/pipeline.py": {"summary": {"covered_branches": 0, "num_branches": 9}},
        }
    }
    percents = covered.percents_of(report, ["cache", "gateway/cascade"])
    assert percents == {"cache": 33.3, "gateway/cascade": 100.0}
    (line,) = covered.fallen(percents, {"cache": 33.4, "gateway/cascade": 100.0})
    assert line.startswith("cache: 33.3% of the branches taken, 33.4% is the floor")
