"""Fill environment variables into a config (`${VAR}`, `${VAR:-default}`) and keep secrets.

An empty variable counts as not set. `$${` stands for a literal `${`. Secrets are never values of the config: it names
the variable or the file that holds them. Error messages never show a secret.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from policies.errors import InvalidContent, KeyPath, Problem
from policies.yaml_source import Document

Environ = Mapping[str, str]

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_INSIDE = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?$", re.DOTALL)
# Upper case only, so that a key written by mistake in place of a variable's name is not accepted and printed.
_VARIABLE = re.compile(r"^[A-Z_][A-Z0-9_]{0,127}$")
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH
_MAX_SECRET_FILE = 64 << 10
LEAST_KEY = 8
"""Fewest characters of a key by which clients are let in; what a backend's key must be is its provider's business."""


class BadSecret(ValueError):
    """Raised for a secret that cannot be read or used. The message never contains the secret."""


def interpolate(document: Document, environ: Environ) -> Document:
    """Return the document with every reference replaced by its value. Raises InvalidContent naming each without one."""
    problems: list[Problem] = []
    value = _filled(document.value, (), document, environ, problems)
    if problems:
        raise InvalidContent(problems)
    return Document(document.file, value, document.places)


def variables_in(text: object) -> list[str]:
    """Return the names of the variables that a value of the file refers to."""
    if not isinstance(text, str):
        return []
    inside = (_INSIDE.match(reference[1]) for reference in _REFERENCE.finditer(text) if reference[1] is not None)
    return [match[1] for match in inside if match]


def secret_from_env(name: str, environ: Environ, least: int = 1) -> SecretStr | None:
    """Return the secret in the variable `name`; None if it is not set.

    Raises BadSecret for an invalid name, or a secret of fewer than `least` characters.
    """
    if not _VARIABLE.match(name):
        raise BadSecret("not the name of an environment variable (A-Z, 0-9 and _); do not write the key itself here")
    value = environ.get(name)
    return _checked(value, name, least) if value else None


def write_private(file: Path, content: bytes) -> None:
    """Replace a file, as a whole or not at all, by one that its owner alone can read. Raises OSError."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def secrets_from_file(file: Path, least: int = 1) -> tuple[list[SecretStr], str | None]:
    """Return the secrets in `file`, one a line, and a warning if other users can read it. Raises BadSecret."""
    try:
        if not file.is_file():
            raise BadSecret(f"{file}: no such file")
        with file.open(encoding="utf-8") as stream:
            mode = file.stat().st_mode
            lines = stream.read(_MAX_SECRET_FILE).splitlines()
    except OSError as error:
        raise BadSecret(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSecret(f"{file}: not text") from None
    secrets = [_checked(line, str(file), least) for line in lines if line]
    if not secrets:
        raise BadSecret(f"{file}: empty")
    warning = f"{file} can be read by other users (mode {mode & 0o777:o}); chmod 600 it"
    return secrets, warning if mode & _READABLE_BY_OTHERS else None


def _checked(value: str, source: str, least: int) -> SecretStr:
    # Keys are sent in a header, where anything but visible ASCII is refused or would split the header.
    if not all("!" <= char <= "~" for char in value):
        raise BadSecret(f"the key in {source} holds whitespace, control or non-ASCII characters")
    if len(value) < least:
        some = f"{len(value)} character{'s' if len(value) > 1 else ''}"
        raise BadSecret(
            f"the key in {source} has {some}, which can be guessed; `openssl rand -hex 24` makes a good one"
        )
    return SecretStr(value)


def _filled(value: Any, path: KeyPath, document: Document, environ: Environ, problems: list[Problem]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, (*path, key), document, environ, problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, (*path, i), document, environ, problems) for i, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def fill(reference: re.Match[str]) -> str:
        if reference[0] == "$${":
            return "${"
        match = _INSIDE.match(reference[1] or "")
        if match is None:
            problems.append(document.problem(path, f"{reference[0]!r}: write ${{VAR}} or ${{VAR:-default}}"))
            return ""
        name, default = match[1], match[2]
        text = environ.get(name) or default
        if text is None:
            problems.append(document.problem(path, f"the environment variable {name} is not set"))
        return text or ""

    return _REFERENCE.sub(fill, value)
