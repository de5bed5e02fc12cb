"""Find what a config only names, secrets and paths, and collect what is wrong with them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pydantic import SecretStr

from gateway.config.environment import LEAST_KEY, BadSecret, Environ, secret_from_env, secrets_from_file
from policies.errors import KeyPath, Problem
from policies.yaml_source import Document


class Resolver:
    """Hold the written config and the environment, and the problems and warnings of what was resolved so far.

    With `reads`, a secret that is not there is no problem: for commands that only read what a gateway has recorded.
    """

    def __init__(self, written: Document, environ: Environ, *, reads: bool) -> None:
        self.written = written
        self.environ = environ
        self.reads = reads
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def refuse(self, path: KeyPath, message: str) -> None:
        """Add a problem at that key: the config does not load."""
        self.problems.append(self.written.problem(path, message))

    def warn(self, path: KeyPath, message: str) -> None:
        """Add a warning at that key."""
        self.warnings.append(self.written.problem(path, message))

    def refuse_secret(self, path: KeyPath, message: str) -> None:
        """Refuse a secret that is not there, or cannot be read here, unless the command only reads."""
        if not self.reads:
            self.refuse(path, message)

    def secret(self, path: KeyPath, name: str, without: str) -> SecretStr | None:
        """Return the secret in a variable; None, and a problem, if it is not set (`without` says why not) or bad."""
        try:
            found = secret_from_env(name, self.environ, LEAST_KEY)
        except BadSecret as error:
            self.refuse(path, str(error))
            return None
        if found is None:
            self.refuse_secret(path, f"{name} is not set; {without}")
        return found

    def keys_in_file(self, path: KeyPath, file: Path, at_most: int | None = None, least: int = 1) -> list[SecretStr]:
        """Return the keys in a file, one per line. Raises BadSecret."""
        keys, warning = secrets_from_file(self.absolute(file), least)
        if warning:
            self.warn(path, warning)
        if at_most is not None and len(keys) > at_most:
            raise BadSecret(f"{file} holds {len(keys)} keys; one is wanted")
        return keys

    def existing(self, path: KeyPath, file: Path | None) -> Path | None:
        """Return a file's or folder's absolute path, None for none; a problem where there is no such file."""
        found = self.absolute(file) if file else None
        if found and not found.exists():
            self.refuse(path, f"no such file or folder: {found}")
        return found

    def absolute(self, file: Path) -> Path:
        """Return the path; a relative one begins at the folder of the config."""
        return self.written.file.parent / file.expanduser()


def is_importable(package: str) -> bool:
    """Return whether a package can be imported, without doing so."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
