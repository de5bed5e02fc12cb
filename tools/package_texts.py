"""Collect texts in many languages, with their English, from the translations that Debian's packages carry.

Read are the messages of LibreOffice (`libreoffice-l10n-*`, MPL-2.0) and of Firefox (`firefox-esr` and
`firefox-esr-l10n-*`, MPL-2.0), the help of LibreOffice (`libreoffice-help-*`, MPL-2.0) and of GNOME (`gnome-user-docs`,
CC BY-SA 3.0). A text is paired with the English one of the same key, or at the same place of the same page. Of
WordNet (`wordnet-base`, the WordNet licence) the definitions and examples are texts in English, paired with themselves.
The result is a file of lines `language TAB source TAB English TAB text`, in the order of the languages, without
repetitions. `languages.toml` names the packages of a language.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from cache.text.languages import ENGLISH
from gateway.cli.flags import add_json_flag
from gateway.parts.fit.datasets import DataError
from gateway.report import OnProgress, Report, table
from tools import command
from tools.cross_encoder_data import LANGUAGES, read_languages

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
_EXAMPLE = re.compile(r'"([^"]{15,150})"')
_PROPERTY = re.compile(r"^([\w.-]+)\s*=\s*(.+)$")

WORDNET = "wordnet"
"""Source of the definitions and examples."""
LICENCES = {
    "libreoffice": "MPL-2.0",
    "libreoffice-help": "MPL-2.0",
    "firefox": "MPL-2.0",
    "gnome-help": "CC BY-SA 3.0",
    WORDNET: "WordNet",
}
"""Licence of each source."""
Texts = dict[str, set[tuple[str, str, str]]]
"""Maps a language to (source, English, text)."""
Keyed = dict[tuple[str, str], str]


def packages_of(languages: Collection[str]) -> list[str]:
    """Return the names of the packages with texts in these languages, and of those with the English of all.

    Raises DataError for a language that `languages.toml` does not list.
    """
    known = read_languages()
    if missing := sorted(set(languages) - known.keys()):
        raise DataError(f"{', '.join(missing)}: {LANGUAGES.name} lists no such language; name {', '.join(known)}")
    return [name for code in sorted({*languages, ENGLISH}) for name in known[code]["packages"]]


def download(names: Sequence[str], packages: Path, on_progress: OnProgress) -> None:
    """Let `apt-get download` put packages into a folder, but for those that are there. Raises DataError, OSError."""
    if shutil.which("apt-get") is None:
        raise DataError("there is no apt-get here: download the packages on Debian and name their folder (--packages)")
    packages.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, 1):
        if not any(packages.glob(f"{name}_*.deb")):
            words = ("apt-get", "download", name)
            done = subprocess.run(words, cwd=packages, capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["apt-get failed"])[-1]
                raise DataError(f"{name}: {why}; `apt-get update` may help, or a mirror of Debian 12 or later")
        on_progress("downloading", number, len(names))


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
            (WORDNET, _definitions(root)),
        ):
            for language, *both in pairs:
                english, text = map(_plain, both)
                if (
                    (english != text or source == WORDNET)
                    and text
                    and len(text) <= _LONGEST >= len(english)
                    and _ENGLISH_WORD.search(english)
                ):
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
            ours, theirs = (_SENTENCE.split(_plain(part)) for part in (english.get(key, ""), text))
            if len(ours) == len(theirs):
                yield from ((_code(name), sentence, other) for sentence, other in zip(ours, theirs, strict=True))
            elif key in english:
                yield _code(name), english[key], text


def _paragraphs(folder: Path) -> Keyed:
    return {
        (path.relative_to(folder).as_posix(), match[2]): match[3]
        for path in folder.rglob("*.html")
        for match in _PARAGRAPH.finditer(path.read_text("utf-8"))
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
        if match := _PROPERTY.match(line):
            yield match[1], match[2]


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
                yield from ((_code(locale), text, other) for text, other in zip(english[name], texts, strict=True))


def _definitions(root: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(root.glob("share/wordnet/data.*")):
        for line in path.read_text("latin-1").splitlines():
            if not line.startswith(" "):
                words, _, gloss = line.partition("|")
                word = words.split(" ")[4].replace("_", " ").partition("(")[0]
                for text in (f"{word}: {gloss.partition(';')[0].strip()}", *_EXAMPLE.findall(gloss)):
                    yield ENGLISH, text, text


def _pages(folder: Path) -> dict[str, list[str]]:
    return {
        path.relative_to(folder).as_posix(): [
            match[2] for match in _PAGE_PART.finditer(_PAGE_FACTS.sub("", path.read_text("utf-8")))
        ]
        for path in folder.rglob("*.page")
    }


def write_texts(texts: Texts, path: Path) -> None:
    """Write the file of the module's docstring."""
    rows = [(code, *row) for code in sorted(texts) for row in sorted(texts[code])]
    path.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")


def read_texts(path: Path) -> Texts:
    """Read the file that this tool writes. Raises DataError, OSError."""
    texts: Texts = defaultdict(set)
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        parts = line.split("\t")
        if len(parts) != 4:
            raise DataError(f"{path}, line {number}: not `language TAB source TAB English TAB text`")
        texts[parts[0]].add((parts[1], parts[2], parts[3]))
    return texts


def main(argv: Sequence[str] | None = None) -> int:
    """Collect the texts, write them and print how many there are by language and source."""
    parser = command.parser("package_texts")
    parser.add_argument("--packages", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--download", nargs="+", metavar="CODE")
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        if args.download:
            download(packages_of(args.download), args.packages, on_progress)
        texts = collect(args.packages, on_progress)
        write_texts(texts, args.out)
        counts = {code: Counter(source for source, *_ in texts[code]) for code in sorted(texts)}
        sources = sorted({source for counted in counts.values() for source in counted})
        made = table("language", *sources)
        for code, counted in counts.items():
            made.add_row(code, *(str(counted[source]) for source in sources))
        done = [f"{sum(map(len, texts.values()))} texts written to {args.out}"]
        return Report({code: dict(counted) for code, counted in counts.items()}, [made], title="texts", done=done)

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
