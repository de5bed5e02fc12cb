"""Find what a config only names, secrets and paths, and collect what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from gateway.config.addresses import is_loopback
from gateway.config.backends import LOCAL_URL, Keyed
from gateway.config.environment import (
    LEAST_KEY,
    BadSecret,
    Environ,
    secret_from_env,
    secrets_from_file,
    variables_in,
)
from policies.errors import KeyPath, Problem
from policies.yaml_source import Document

LOCAL_KEY = "TIERLINE_LOCAL_KEY"
"""Environment variable with the key that the model at LOCAL_URL requires; set by `tierline up`."""


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

    def own_key(self, path: KeyPath, server: Keyed, *, lacks_url: bool) -> tuple[SecretStr | None, str | None]:
        """Return the key for a server, and why it cannot be called yet, None if it can."""
        reason = self._why_no_url((*path, "base_url")) if lacks_url else None
        key = None
        key_env = LOCAL_KEY if self.environ.get(LOCAL_KEY) and self.is_local(server) else server.key_env
        try:
            if key_env:
                key = secret_from_env(key_env, self.environ)
                reason = reason or (None if key else f"{key_env} is not set")
            elif server.key_file:
                key = self.keys_in_file((*path, "key_file"), server.key_file, at_most=1)[0]
        except BadSecret as error:
            reason = reason or str(error)
            self.refuse_secret((*path, "key_env" if key_env else "key_file"), str(error))
        url = urlsplit(server.base_url)
        if (auth := server.auth) is not None and (lacks := auth.lacks()):
            self.refuse((*path, "auth", "kind"), f"{auth.kind} needs {lacks}")
        if (key or auth) and url.scheme == "http" and not is_loopback(url.hostname or ""):
            self.warn((*path, "base_url"), "the key goes over the network unencrypted; use https")
        return key, reason

    def is_local(self, server: Keyed) -> bool:
        """Return whether a server is the model that `tierline up` has started."""
        return bool(server.base_url) and server.base_url == self.environ.get(LOCAL_URL, "").rstrip("/")

    def _why_no_url(self, path: KeyPath) -> str:
        *section, key = path
        names = variables_in(self.written.at(tuple(section)).get(key))
        if names:
            return f"{names[0]} is not set"
        return f"no base_url; ${{{LOCAL_URL}:-}} is the model that `tierline up` starts"
