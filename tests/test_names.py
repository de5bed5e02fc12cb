"""What holds for the names in the tree."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gateway", "routing", "cache", "policies", "tools")


def test_a_class_name_occurs_once() -> None:
    """Two classes of one name make a reader look twice, and a search find the wrong one."""
    places = defaultdict(list)
    for file in (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
