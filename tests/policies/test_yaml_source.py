"""How hand-written YAML is read, and what of YAML is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from policies.errors import ConfigError, Finding, InvalidYaml, UnreadableFile
from policies.yaml_source import MAX_BYTES, Document, read_yaml

Read = Callable[[str], Document]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def _read(text: str) -> Document:
        file = tmp_path / "a.yaml"
        file.write_text(text + "\n")
        return read_yaml(file)

    return _read


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("no", "no"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-7", -7),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e3", 1000.0),
        ("0.62", 0.62),
        ("12:30", "12:30"),
        ("2026-11-20", "2026-11-20"),
        ("1_000", "1_000"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("400ms", "400ms"),
        ("=", "="),
    ],
)
def test_scalars_follow_the_yaml_1_2_core_schema(read: Read, written: str, meant: object) -> None:
    """Only true and false are booleans, and only what looks like a number is one."""
    found = read(f"a: {written}\nb: x").value["a"]
    assert found == meant
    assert type(found) is type(meant)


def test_keys_are_always_text(read: Read) -> None:
    """A key such as `no` or `1` stays the word that was written."""
    assert read("no: 1\n1: 2\ntrue: 3").value == {"no": 1, "1": 2, "true": 3}


def test_a_colon_inside_a_word_needs_no_quotes(read: Read) -> None:
    """In braces and brackets too, where older parsers refuse it: URLs and `tier:NAME` are written there."""
    text = "store: {url: redis://own:6379/0}\nmodels: [tier:local, 12:30]\n"
    assert read(text).value == {"store": {"url": "redis://own:6379/0"}, "models": ["tier:local", "12:30"]}


def test_every_value_knows_its_line(read: Read) -> None:
    """A problem is placed at its key, or at the nearest key around one that is not there."""
    document = read("a:\n  b:\n    - x\n    - y: 1\n")
    assert str(document.problem(("a", "b", 1, "y"), "bad")).endswith("a.yaml:4:10: a.b[1].y: bad")
    assert document.problem(("a", "nope"), "bad").line == 1


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\nb: 2\na: 3", 3, "a: given twice; first on line 1"),
        ("a: {b: 1, b: 2}", 1, "a.b: given twice"),
        ("a: &x 1", 1, "anchors and aliases"),
        ("a: &x {b: 1}\nc: *x", 2, "anchors and aliases"),
        ("a: 1\n<<: {b: 1}", 2, "merge keys"),
        ("a: !!python/object/apply:os.system [echo]", 1, "tags"),
        ("a: !!str 5", 1, "tags"),
        ("a: 1\n---\nb: 2", 2, "second document"),
        ("", 0, "empty"),
        ("# only a comment\n", 0, "empty"),
        ("---\n...", 0, "empty"),
        ("- 1\n- 2", 1, "must be a mapping"),
        ("? [a, b]\n: 1", 1, "a key must be plain text"),
        ("a: 1\nb: [1, 2", 3, "that began on line 2"),
        ("a: 1\n\tb: 2", 2, "not YAML"),
        ("a: 1\nb: \x07", 2, "not YAML"),
        ("[" * 5000, 1, "nested deeper"),
        ("a: " + "{a: " * 100, 1, "nested deeper"),
    ],
)
def test_what_could_surprise_is_refused_with_its_line(read: Read, text: str, line: int, says: str) -> None:
    """Each refused part of YAML is named where it stands."""
    with pytest.raises(InvalidYaml) as caught:
        read(text)
    assert any(problem.line == line and says in str(problem) for problem in caught.value.problems), caught.value


def test_everything_refused_is_told_at_once(read: Read) -> None:
    """One reading names all refused parts, not only the first."""
    with pytest.raises(InvalidYaml) as caught:
        read("a: &x 1\nb: 2\nb: 3\nc: !!set {}\n")
    assert [problem.line for problem in caught.value.problems] == [1, 3, 4]


def test_a_yaml_bomb_costs_nothing(read: Read) -> None:
    """Nested aliases are refused in no time."""
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 20))
    started = time.process_time()
    with pytest.raises(InvalidYaml):
        read(f"l0: &l0 [x]\n{levels}\n")
    assert time.process_time() - started < 1


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """Missing, a folder, a device, too large, not UTF-8: each is one clear problem, at once."""
    large, binary = tmp_path / "large.yaml", tmp_path / "binary.yaml"
    large.write_text("# " + "x" * MAX_BYTES)
    binary.write_bytes(b"a: 1\nb: \xff\xfe\n")
    for file, reason in [
        (tmp_path / "missing.yaml", "no such file"),
        (tmp_path, "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (large, "larger than 256 KiB"),
        (binary, "not UTF-8"),
    ]:
        with pytest.raises(UnreadableFile, match=reason):
            read_yaml(file)


@pytest.mark.parametrize("cut", ["a: 1\nb: x", "a: 1\nb:\n  c: 2\n  ", "# {", "a: 1\n# half a comm"])
def test_a_file_that_may_be_cut_off_is_refused(tmp_path: Path, cut: str) -> None:
    """Half a file is often valid YAML; its last line, without a line break, tells. It is named with what to do."""
    file = tmp_path / "a.yaml"
    file.write_text(cut)
    with pytest.raises(
        UnreadableFile, match=rf"a\.yaml:{cut.count(chr(10)) + 1}: .*; end it with a line break \[T108\]"
    ):
        read_yaml(file)


def test_a_mapping_in_braces_needs_no_line_break(tmp_path: Path) -> None:
    """Programs write JSON without one, and cut off it is not YAML."""
    file = tmp_path / "a.yaml"
    file.write_text('{"a": 1}')
    assert read_yaml(file).value == {"a": 1}


def test_the_largest_file_is_read_quickly(read: Read) -> None:
    """A file at the size limit takes well under two seconds."""
    line = "k{:06}: [1, 2.5, yes, {{a: b}}]\n"
    started = time.process_time()
    read("".join(line.format(i) for i in range(MAX_BYTES // len(line.format(0)) - 1)))
    assert time.process_time() - started < 2


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    """What Windows editors put first is passed over."""
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(file).value == {"a": 1}


def test_every_error_is_a_config_error() -> None:
    """Whoever catches the root of the tree catches all of it."""
    assert issubclass(InvalidYaml, ConfigError)
    assert issubclass(UnreadableFile, ConfigError)


@pytest.mark.parametrize(
    ("text", "path", "line", "column"),
    [
        ("a: x < 1 and y\n", ("a",), 1, 14),
        ('a: "x < 1 and y"\n', ("a",), 1, 15),
        ("a: {b: 'x < 1 and y'}\n", ("a", "b"), 1, 19),
        ("a: x < 1   and y\n", ("a",), 1, 16),
        ("a:\n  x < 1 and y\n", ("a",), 2, 13),
        ("a: x < 1\n  and y\n", ("a",), 1, 4),
        ("a: >\n  x < 1\n  and y\n", ("a",), 1, 4),
        ('a: "x < \\x31 and y"\n', ("a",), 1, 4),
        ("a: [z, x < 1 and y]\n", ("a", 1), 1, 18),
    ],
)
def test_a_place_within_a_text_has_its_column(
    read: Read, text: str, path: tuple[str | int, ...], line: int, column: int
) -> None:
    """In one line it is exact; in several, or with escapes, it is the start of the value."""
    problem = read(text).locate(Finding(path, "bad", at=10))
    assert (problem.line, problem.column) == (line, column)


def test_a_key_has_a_column_too(read: Read) -> None:
    """An unknown key is wrong itself; a section is pointed at where it begins on the line of its key."""
    document = read("a:\n  key:   1\n  b:\n    c: 1\n")
    assert [document.locate(Finding(("a", "key"), "", of_key=of_key)).column for of_key in (True, False)] == [3, 10]
    assert (document.problem(("a", "b"), "").line, document.problem(("a", "b"), "").column) == (3, 3)
