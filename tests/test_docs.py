"""What the code has is in the documents, and what they name is there: keys, headers, error codes, files, words.

What is looked for is read from the code; nothing of it is listed here.
"""

from __future__ import annotations

import ast
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import create_model
from pydantic.fields import FieldInfo

from gateway import errors
from gateway.backends.base import BackendError
from gateway.config import loader
from gateway.config.backends import BackendConfig
from gateway.config.sections import deployment_model
from gateway.parts.access.admission import OutOfBudget
from gateway.parts.access.quotas.terms import Terms
from gateway.parts.agents.admission import SessionLimitReached
from gateway.parts.lint.rule_values import CACHE_VALUES, ROUTE_VALUES
from gateway.parts.standard import PARTS, StandardPart, kinds_of_backends
from gateway.telemetry import names
from policies.loader import DEFAULTS
from policies.sections import rules_model
from policies.validation import Section

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gateway", "routing", "cache", "policies", "tools")
DOCUMENTS = sorted(
    file
    for file in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in ("node_modules", "build") for part in file.relative_to(ROOT).parts)
)
NAMES = [str(file.relative_to(ROOT)) for file in DOCUMENTS]
INSTALLED = [part for part in PARTS if part.installed]
WIDEST = 120
"""Most characters of a line outside tables."""


@cache
def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


# --- keys of policies and of the config -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What a reference says of one key: the cells of its table's row, by the column's heading."""

    cells: dict[str, str]

    def code(self, column: str) -> Any:
        """The YAML value that stands between backticks in that column."""
        cell = re.fullmatch(r"`(.*)`", self.cells[column])
        assert cell is not None, f"{column}: {self.cells[column]!r} is not code"
        return yaml.safe_load(cell[1])


@cache
def rows(text: str) -> dict[str, Row]:
    """The rows of all tables of keys, by key. A heading that ends with a path in backticks is put before its keys."""
    found: dict[str, Row] = {}
    prefix, columns = "", []
    for line in text.splitlines():
        if line.startswith("#"):
            path = re.search(r"prefix `([^`]+)`$", line)
            prefix, columns = path[1] + "." if path else "", []
        elif line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[0] == "key":
                columns = cells
            elif columns and (key := re.fullmatch(r"`([^`]+)`", cells[0])):
                assert prefix + key[1] not in found, f"{prefix}{key[1]} stands there twice"
                found[prefix + key[1]] = Row(dict(zip(columns, cells, strict=True)))
        else:
            columns = columns if line.startswith("|") else []
    return found


def sections_in(annotation: Any) -> Iterator[tuple[str, type[Section]]]:
    """The sections in a type, each with what stands for their number in a path: `[]` of a list, `.NAME` of a map."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield "", annotation
    many = {tuple: "[]", Mapping: ".NAME"}.get(typing.get_origin(annotation), "")
    for part in typing.get_args(annotation):
        for inner, section in sections_in(part):
            yield many + inner, section


def fields(model: type[Section], prefix: str = "", skipped: frozenset[str] = frozenset()) -> dict[str, FieldInfo]:
    """Every field that can be written, by its path: `tiers[].backends[].model`, `tenants.NAME.team`, `slo.ttft.p95`.

    A section that is always there has no row of its own; its keys have.
    """
    found: dict[str, FieldInfo] = {}
    kinds = kinds_of_backends() if model is BackendConfig else ()
    models = [model.model_of({}), *(model.model_of({"kind": kind}) for kind in kinds)]  # parts' own have more keys
    for name, field in {name: field for each in models for name, field in each.model_fields.items()}.items():
        if name in skipped:
            continue
        if field.annotation is Terms:  # its keys have rows of their own, once
            found[prefix + name] = field
            continue
        inner = list(sections_in(field.annotation))
        if not any(field.annotation is section for _, section in inner):
            found[prefix + name] = field
        for many, section in inner:
            found |= fields(section, f"{prefix}{name}{many}.", skipped)
    return found


POLICY_FIELDS = fields(rules_model())
CONFIG_FIELDS = fields(deployment_model(), skipped=loader.resolved_keys() | (loader._SECRET_KEYS - {"keys"})) | fields(
    Terms, "TERMS."
)


def page_of(part: StandardPart) -> str:
    """The document of a part."""
    return str((part.folder / "README.md").relative_to(ROOT))


def fields_of(part: StandardPart) -> dict[str, FieldInfo]:
    """The keys of the config that only this part reads."""
    own = {*part.sections, *(["TERMS"] if part.name == "access" else [])}
    return {key: field for key, field in CONFIG_FIELDS.items() if re.split(r"[.\[]", key)[0] in own}


OF_PARTS = {key for part in PARTS for key in fields_of(part)}
KEYS = {
    "policies/README.md": POLICY_FIELDS,
    "deploy/README.md": {key: field for key, field in CONFIG_FIELDS.items() if key not in OF_PARTS},
    **{page_of(part): fields_of(part) for part in INSTALLED},
}
"""By document: the keys that it describes."""
REFERENCES = [(document, key, field) for document, keys in KEYS.items() for key, field in keys.items()]


def value_of(field: FieldInfo, written: object) -> object:
    """What the key holds where a file says `written`."""
    holder: Any = create_model("Holder", __base__=Section, value=(field.annotation, field))
    return holder.model_validate({"value": written}).value


@pytest.mark.parametrize(("document", "key", "field"), REFERENCES, ids=[f"{at}:{key}" for at, key, _ in REFERENCES])
def test_each_key_is_described(document: str, key: str, field: FieldInfo) -> None:
    """With its type, the default that it has in the code, and an example that the code takes."""
    documented = rows(read(document))
    assert key in documented
    row = documented[key]
    assert row.cells["type"] and row.cells["meaning"].endswith(".")
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if field.is_required():
        assert row.cells["default"] == "required"
    elif default is None:
        assert row.cells["default"] == "none"
    else:
        assert value_of(field, row.code("default")) == default
    if row.cells["example"] == "-":
        assert len(typing.get_args(field.annotation)) == 1, "there is another value to show"
    else:
        assert value_of(field, row.code("example")) != default, "the example is the default"


@pytest.mark.parametrize(("document", "known"), KEYS.items(), ids=KEYS)
def test_no_key_is_described_that_is_not_there(document: str, known: dict[str, FieldInfo]) -> None:
    assert sorted(rows(read(document)).keys() - known.keys()) == []


@pytest.mark.parametrize("values", [ROUTE_VALUES, CACHE_VALUES], ids=["route", "cache"])
def test_each_value_of_a_rule_is_described(values: dict[str, Any]) -> None:
    text = read("policies/README.md")
    tables = re.findall(r"\| value \| kind \| meaning \|\n\|[-|]+\|\n((?:\|.*\n)+)", text)
    named = [set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) for table in tables]
    assert set(values) in named


# --- parts ------------------------------------------------------------------------------------------------------------


def commands_of(part: StandardPart) -> set[str]:
    """Its commands with their actions, as its help has them; one without commands has no help."""
    if not part.commands:
        return set()
    help_texts = tomllib.loads((part.folder / "help.toml").read_text("utf-8"))
    return {name for name in help_texts if not name.endswith("options")}


@pytest.mark.parametrize("part", INSTALLED, ids=lambda part: part.name)
def test_each_part_describes_its_commands_and_metrics(part: StandardPart) -> None:
    text = read(page_of(part))
    assert sorted(name for name in commands_of(part) if f"tierline {name}" not in text) == []
    written = {name for file in part.folder.rglob("*.py") for name in _METRIC.findall(file.read_text("utf-8"))}
    assert sorted(name for name in written if f"`{name}`" not in text) == []


_METRIC = re.compile(r"\"(tierline_\w+)\"")


@pytest.mark.parametrize("part", INSTALLED, ids=lambda part: part.name)
def test_a_parts_page_begins_with_what_a_person_wants_to_do(part: StandardPart) -> None:
    """With what to run for it, before any table of keys."""
    before, _, _ = read(page_of(part)).partition("\n| key |")
    assert "\n| I want to | run |\n" in before


def lost_without(part: StandardPart) -> set[str]:
    """The parts that require this one, those that require them, and the commands of other parts that need it."""
    return {*part.needed_by, *dependents(part)}


def dependents(part: StandardPart) -> set[str]:
    """The names of the parts that require this one, and of those that require them."""
    direct = [other for other in PARTS if part.name in other.requires]
    return {name for other in direct for name in (other.name, *dependents(other))}


@pytest.mark.parametrize("part", INSTALLED, ids=lambda part: part.name)
def test_a_parts_page_says_what_happens_without_it(part: StandardPart) -> None:
    """With the parts and commands that go too."""
    [row] = re.findall(
        r"^\| do without(?: the part)? \| delete this folder: (.+) \|$", read(page_of(part)), re.MULTILINE
    )
    assert sorted(name for name in lost_without(part) if not re.search(f"`(tierline )?{name}`", row)) == []


def test_each_part_has_a_row_in_the_list_of_parts() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)/README\.md\) \| \S.* \|$", read("gateway/parts/README.md"), re.MULTILINE)
    assert [name for name, _ in listed] == [folder for _, folder in listed] == sorted(part.name for part in PARTS)


# --- headers and error codes ------------------------------------------------------------------------------------------


@cache
def sources() -> dict[Path, str]:
    """The text of every module that ships."""
    return {file: file.read_text("utf-8") for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


def headers_in_code() -> set[str]:
    """Also those that only a docstring or a comment names."""
    return {name for text in sources().values() for name in re.findall(r"x-tierline(?:-[a-z]+)+", text)}


def error_codes_in_code() -> set[str]:
    """The words that a client can find as an error's `code`; those that a backend gave and we pass on are not ours."""
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.ApiError)]
    classes += [OutOfBudget, SessionLimitReached]
    found = {one.code for one in classes if one.code}
    made = {one.__name__ for one in classes}
    for text in (text for file, text in sources().items() if file.is_relative_to(ROOT / "gateway")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in made:
                given = [word.value for word in node.keywords if word.arg == "code"]
                found |= {one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)}
            # What the server refuses before the application sees it is a (status, code, message).
            if isinstance(node, ast.Tuple) and len(node.elts) == 3:
                status, code = (getattr(one, "value", None) for one in node.elts[:2])
                if isinstance(status, int) and 400 <= status < 600 and isinstance(code, str):
                    found.add(code)
    # A stream that breaks off says how its call failed.
    return found | {one.error_type for one in (BackendError, *below(BackendError))}


def below(one: type) -> Iterator[type]:
    for child in one.__subclasses__():
        yield child
        yield from below(child)


def test_each_header_is_described() -> None:
    text = read("gateway/README.md")
    headers = headers_in_code()
    assert headers
    assert sorted(name for name in headers if f"`{name}`" not in text and f"`{name}:" not in text) == []


def test_each_error_code_is_described() -> None:
    text = read("gateway/README.md")
    codes = error_codes_in_code()
    assert codes
    assert sorted(code for code in codes if f"`{code}`" not in text) == []


# --- what the documents name ------------------------------------------------------------------------------------------

_TOP = {one.name for one in ROOT.iterdir() if one.is_dir() and not one.name.startswith(".")}
_SUFFIXES = (".py", ".md", ".yaml", ".toml", ".safetensors", ".jsonl", ".lua", ".conf")


def spans(text: str) -> set[str]:
    """What stands between single backticks, outside of code blocks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)}


def looks_like_a_path(span: str) -> bool:
    """Whether it is a file or folder of this repository: it begins with a folder of its root, or is a file's name."""
    if not re.fullmatch(r"[\w./-]+", span):
        return False
    first, slash, _ = span.partition("/")
    return bool(slash and first in _TOP) or (not span.startswith(("/", ".")) and span.endswith(_SUFFIXES))


def of_an_absent_part(path: Path) -> bool:
    """Whether it lies in the folder of a part that this installation was made without."""
    return any(path.resolve().is_relative_to(part.folder) for part in PARTS if not part.installed)


def made_on_the_spot(span: str) -> bool:
    """What git ignores is not in the tree: what builds, and files of a user's own."""
    return span.startswith("build/") or span == DEFAULTS


@pytest.mark.parametrize("name", NAMES)
def test_named_files_are_there(name: str) -> None:
    """Seen from the root, or from the document's own folder."""
    here = (ROOT / name).parent
    paths = [span for span in spans(read(name)) if looks_like_a_path(span) and not made_on_the_spot(span)]
    places = {path: (ROOT / path, here / path) for path in paths}
    assert [path for path, at in places.items() if not any(one.exists() or of_an_absent_part(one) for one in at)] == []


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    """To a file of this repository, and in it to a heading, where they name one."""
    here = (ROOT / name).parent
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", read(name)):
        file, _, heading = target.partition("#")
        page = here / file if file else ROOT / name
        if of_an_absent_part(page):
            continue
        assert page.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, target


def is_module(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file() or of_an_absent_part(path)


@pytest.mark.parametrize("name", NAMES)
def test_named_modules_are_there(name: str) -> None:
    """`python -m MODULE` in any text; dotted names in backticks, unless a key or a hop is called so."""
    keys = {*POLICY_FIELDS, *CONFIG_FIELDS}
    others = keys | {value for value in vars(names).values() if isinstance(value, str)}
    others |= {parent for key in keys for parent in (key.rpartition(".")[0], key.partition(".")[0])}
    text = read(name)
    dotted = {span for span in spans(text) if re.fullmatch(rf"(?:{'|'.join((*PACKAGES, 'tests'))})(?:\.\w+)+", span)}
    dotted = {span for span in dotted - others if not span.endswith(_SUFFIXES)}
    run = {module for module in re.findall(r"python -m ([\w.]+)", text) if module.partition(".")[0] in _TOP}
    assert sorted(module for module in dotted | run if not is_module(module)) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "CHANGELOG.md"])
def test_lines_are_no_wider_than_a_window(name: str) -> None:
    """But for tables, whose rows are lines."""
    lines = enumerate(read(name).splitlines(), 1)
    assert [number for number, line in lines if len(line) > WIDEST and not line.startswith("|")] == []


def test_the_readme_is_short() -> None:
    assert len(read("README.md").splitlines()) <= 150


def glossary() -> dict[str, str]:
    _, _, text = read("gateway/README.md").partition("\n## Glossary\n")
    rows = re.findall(r"^- \*\*([^*]+)\*\*: (.+(?:\n  .+)*)$", text.partition("\n## ")[0], re.MULTILINE)
    return {word: " ".join(meaning.split()) for word, meaning in rows}


def test_the_glossary_has_25_words() -> None:
    assert len(glossary()) == 25


@pytest.mark.parametrize("word", sorted(glossary()))
def test_each_word_of_the_glossary_is_used_in_the_code(word: str) -> None:
    """And is explained in one sentence."""
    assert re.fullmatch(r"[^.?!]+\.", glossary()[word])
    written = re.compile(re.sub("[ -]", "[ _-]?", re.escape(word.lower()).replace("\\", "")))
    assert any(written.search(text.lower()) for text in sources().values())
