"""Collect texts in many languages, with their English, from the translations that Debian's packages carry.

Read are the messages of LibreOffice (`libreoffice-l10n-*`, MPL-2.0) and of Firefox (`firefox-esr` and
`firefox-esr-l10n-*`, MPL-2.0), the help of LibreOffice (`libreoffice-help-*`, MPL-2.0) and of GNOME (`gnome-user-docs`,
CC BY-SA 3.0). A text is paired with the English one of the same key, or at the same place of the same page. The result
is a file of lines `language TAB source TAB English TAB text`, in the order of the languages, without repetitions.
"""

from __future__ import annotations

import argparse
import html
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.cli.commands._flags import add_json_flag
from gateway.fit.datasets import DataError
from gateway.progress import OnProgress
from gateway.report import Report, table
from tools import command

_LONGEST = 300  # characters
_TAG = re.compile(r"<[^>]+>")
_MNEMONIC = re.compile(r"(?<!\w)[_~&](?=\w)|(?<=\w)[_~](?=\w)|\(~?_?\w\)$")
_ENGLISH_WORD = re.compile(r"[a-zA-Z]{3}")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*(?=\S)")
_PARAGRAPH = re.compile(r'<(p|h\d) id="((?:par|hd)_[^"]+)"[^>]*>(.*?)</\1>', re.DOTALL)
_PAGE_PART = re.compile(r"<(p|title|desc)(?: [^>]*)?>(.*?)</\1>", re.DOTALL)
_PAGE_FACTS = re.compile(r"<info>.*?</info>", re.DOTALL)
_MESSAGE = re.compile(r"^([a-zA-Z][\w-]*) =(.*)$")
_ATTRIBUTE = re.compile(r"^\s+\.([\w-]+) =(.*)$")
_PROPERTY = re.compile(r"^([\w.-]+)\s*=\s*(.+)$")

Texts = dict[str, set[tuple[str, str, str]]]
"""Maps a language to (source, English, text)."""
Keyed = dict[tuple[str, str], str]


def collect(packages: Path, on_progress: OnProgress) -> Texts:
    """Return the texts of all `*.deb` files in a folder. Raises DataError, OSError."""
    files = sorted(packages.glob("*.deb"))
    if not files:
        raise DataError(f"{packages}: it contains no *.deb file; `apt-get download` puts them there")
    found: Texts = defaultdict(set)
    with tempfile.TemporaryDirectory() as scratch:
        for number, file in enumerate(files, 1):
            subprocess.run(["dpkg-deb", "-x", str(file), scratch], check=True)  # noqa: S603, S607
            on_progress("unpacking", number, len(files))
        root = Path(scratch, "usr")
        for source, pairs in (
            ("libreoffice", _office_messages(root)),
            ("libreoffice-help", _office_help(root)),
            ("firefox", _browser_messages(root)),
            ("gnome-help", _desktop_help(root)),
        ):
            for language, *both in pairs:
                english, text = map(_plain, both)
                if english != text and text and len(text) <= _LONGEST >= len(english) and _ENGLISH_WORD.search(english):
                    found[language].add((source, english, text))
            on_progress(source, 1, 1)
    return found


def _plain(text: str) -> str:
    return " ".join(_MNEMONIC.sub("", html.unescape(_TAG.sub("", text))).split())


def _code(locale: str) -> str:
    """Return the ISO 639-1 code of a locale such as `zh_CN`, `pt-BR` or `nb-NO`."""
    return re.split(r"[-_@]", locale)[0].lower()


def _office_messages(root: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(root.glob("lib/libreoffice/program/resource/*/LC_MESSAGES/*.mo")):
        for key, text in _compiled_messages(path.read_bytes()):
            if key and "\0" not in key and "@" not in path.parts[-3]:
                yield _code(path.parts[-3]), key.rpartition("\x04")[2], text


def _compiled_messages(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the messages of a GNU gettext `.mo` file, least byte first, with their translations."""
    count, keys, texts = struct.unpack_from("<3I", data, 8)
    for at in range(0, 8 * count, 8):
        both = (struct.unpack_from("<2I", data, start + at) for start in (keys, texts))
        key, text = (data[offset : offset + size].decode("utf-8", "replace") for size, offset in both)
        yield key, text


def _office_help(root: Path) -> Iterator[tuple[str, str, str]]:
    folders = {path.name: path for path in sorted(root.glob("share/libreoffice/help/*")) if (path / "text").is_dir()}
    english = _paragraphs(folders["en-US"]) if "en-US" in folders else {}
    for name, folder in folders.items():
        for key, text in _paragraphs(folder).items() if name != "en-US" else ():
            ours, theirs = (_SENTENCE.split(_plain(one)) for one in (english.get(key, ""), text))
            if len(ours) == len(theirs):
                yield from ((_code(name), one, other) for one, other in zip(ours, theirs, strict=True))
            elif key in english:
                yield _code(name), english[key], text


def _paragraphs(folder: Path) -> Keyed:
    return {
        (path.relative_to(folder).as_posix(), found[2]): found[3]
        for path in folder.rglob("*.html")
        for found in _PARAGRAPH.finditer(path.read_text("utf-8"))
    }


def _browser_messages(root: Path) -> Iterator[tuple[str, str, str]]:
    english: Keyed = {}
    for path in sorted(root.glob("lib/firefox-esr/**/omni.ja")):
        english |= _messages_in(path)
    for path in sorted(root.glob("lib/firefox-esr/browser/extensions/langpack-*.xpi")):
        language = _code(path.name.removeprefix("langpack-").partition("@")[0])
        yield from ((language, english[key], text) for key, text in _messages_in(path).items() if key in english)


def _messages_in(archive: Path) -> Keyed:
    found: Keyed = {}
    with zipfile.ZipFile(archive) as files:
        for name in files.namelist():
            if name.endswith((".ftl", ".properties")):
                read = _fluent if name.endswith(".ftl") else _properties
                for key, text in read(files.read(name).decode("utf-8", "replace")):
                    found[Path(name).name, key] = text
    return found


def _properties(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if found := _PROPERTY.match(line):
            yield found[1], found[2]


def _fluent(text: str) -> Iterator[tuple[str, str]]:
    """Yield the messages of a Fluent file and their attributes, but for those with placeholders."""
    message, key, lines = "", "", [""]
    for line in [*text.splitlines(), "# end"]:
        begins, part = _MESSAGE.match(line), _ATTRIBUTE.match(line)
        if not (begins or part or line.startswith("#")):
            lines.append(line)
            continue
        whole = " ".join(" ".join(lines).split())
        if key and whole and "{" not in whole:
            yield key, whole
        message = begins[1] if begins else message
        key, lines = (message, [begins[2]]) if begins else (f"{message}.{part[1]}", [part[2]]) if part else ("", [""])


def _desktop_help(root: Path) -> Iterator[tuple[str, str, str]]:
    pages = {folder.name: _pages(folder) for folder in sorted(root.glob("share/help/*"))}
    english = pages.pop("C", {})
    for locale, translated in pages.items():
        for name, texts in translated.items():
            if len(english.get(name, ())) == len(texts):
                yield from ((_code(locale), one, other) for one, other in zip(english[name], texts, strict=True))


def _pages(folder: Path) -> dict[str, list[str]]:
    return {
        path.relative_to(folder).as_posix(): [
            found[2] for found in _PAGE_PART.finditer(_PAGE_FACTS.sub("", path.read_text("utf-8")))
        ]
        for path in folder.rglob("*.page")
    }


def read_texts(path: Path) -> Texts:
    """Read the file that this tool writes. Raises DataError, OSError."""
    found: Texts = defaultdict(set)
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        parts = line.split("\t")
        if len(parts) != 4:
            raise DataError(f"{path}, line {number}: not `language TAB source TAB English TAB text`")
        found[parts[0]].add((parts[1], parts[2], parts[3]))
    return found


_EXAMPLES = """examples:
  mkdir packages && cd packages
  apt-get download libreoffice-help-en-us firefox-esr gnome-user-docs
  apt-get download libreoffice-l10n-zh-cn libreoffice-help-zh-cn firefox-esr-l10n-zh-cn && cd ..
  python -m tools.package_texts --packages packages --out texts.tsv
                              Chinese texts with their English; name more packages for more languages"""


def main(argv: Sequence[str] | None = None) -> int:
    """Collect the texts, write them and print how many there are by language and source."""
    parser = command.parser(
        "package_texts",
        "Collect texts in many languages with their English from the translations in Debian's packages, for "
        "train_languages and for train_cross_encoder --parallel.",
        _EXAMPLES,
    )
    parser.add_argument("--packages", type=Path, required=True, metavar="DIR", help="the folder with the *.deb files")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        found = collect(args.packages, on_progress)
        rows = [(code, *row) for code in sorted(found) for row in sorted(found[code])]
        args.out.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
        counts = {code: Counter(source for source, *_ in found[code]) for code in sorted(found)}
        sources = sorted({source for counted in counts.values() for source in counted})
        made = table("language", *sources)
        for code, counted in counts.items():
            made.add_row(code, *(str(counted[source]) for source in sources))
        done = [f"{len(rows)} texts written to {args.out}"]
        return Report({code: dict(counted) for code, counted in counts.items()}, [made], title="texts", done=done)

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
