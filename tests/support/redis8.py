"""A real Redis 8 for tests, which has vector sets: the machine's own, or Debian's newest, unpacked into build/.

`redis-server` of the PATH is taken when it is 8 or later. Else, where there is apt-get, the packages of a newer Debian
than this machine's are fetched with the libraries they need (about 12 MB, once), through apt and from the mirror the
machine uses, so that signatures and checksums are apt's to check. Nothing is installed: the server runs from that
folder with the loader and the libc it came with. Where none of this works, `Unavailable` says why, and tests skip.

    python -m tests.support.redis8 [PORT]       runs one in the foreground
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.gateway import ROOT
from tests.support.store import LocalStore

FOLDER = ROOT / "build" / "redis8"
SUITE = "trixie"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LIBRARIES = (
    "libc6", "libstdc++6", "libgcc-s1", "libatomic1", "libjemalloc2", "liblzf1", "libssl3t64", "libsystemd0", "libcap2",
    "zlib1g", "libzstd1",
)  # fmt: skip
_FETCH_S = 180
_APT = ("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10")


class Unavailable(Exception):
    """There is no Redis 8 to be had here; says why."""


@cache
def redis8() -> tuple[str, ...]:
    """The command that starts a Redis 8, without its options. Raises Unavailable."""
    own = shutil.which("redis-server")
    if own is not None and _major((own,)) >= 8:
        return (own,)
    if platform.machine() != "x86_64" or shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable("no redis-server 8 on the PATH, and none to be fetched but for Debian on x86-64")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (FOLDER / "root").exists():
            _fetch()
    return _unpacked()


@contextlib.contextmanager
def redis8_store(options: str = "") -> Iterator[LocalStore]:
    """A started Redis 8 on a free port that is gone afterwards. Raises Unavailable."""
    store = LocalStore(options, command=redis8())
    try:
        store.start()
        yield store
    finally:
        store.close()


def _unpacked() -> tuple[str, ...]:
    root = FOLDER / "root" / "usr"
    libraries = root / "lib" / "x86_64-linux-gnu"
    loader = libraries / "ld-linux-x86-64.so.2"
    return (str(loader), "--library-path", str(libraries), str(root / "bin" / "redis-server"))


def _major(command: tuple[str, ...]) -> int:
    told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v=(\d+)", told)
    return int(found[1]) if found else 0


def _fetch() -> None:
    """Fetches the packages with an apt of our own, whose lists and cache lie under FOLDER, and unpacks them."""
    apt = FOLDER / "apt"
    for part in ("lists/partial", "cache/archives/partial", "debs"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {SUITE} main\n")
    (apt / "status").touch()
    options = (
        *_APT, "-o", f"Dir::Etc::sourcelist={apt}/sources.list", "-o", "Dir::Etc::sourceparts=-",
        "-o", f"Dir::State::lists={apt}/lists", "-o", f"Dir::State::status={apt}/status",
        "-o", f"Dir::Cache={apt}/cache", "-o", "Acquire::Languages=none", "-o", "APT::Sandbox::User=",
        "-o", "APT::Architecture=amd64", "-o", "APT::Update::Error-Mode=any",
    )  # fmt: skip
    _run(["apt-get", "-qq", *options, "update"], FOLDER)
    _run(["apt-get", "-qq", *options, "download", "redis-server", "redis-tools", *_LIBRARIES], apt / "debs")
    unpacked = FOLDER / "unpacking"
    shutil.rmtree(unpacked, ignore_errors=True)
    for package in sorted((apt / "debs").glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(package), str(unpacked)], FOLDER)
    unpacked.rename(FOLDER / "root")
    shutil.rmtree(apt)


def _mirror() -> str:
    """Where this machine's apt gets Debian from."""
    told = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], ROOT)
    mirrors = [line for line in told.splitlines() if line and "security" not in line]
    if not mirrors or not _KEYRING.exists():
        raise Unavailable("this machine's apt knows no Debian mirror to fetch a Redis 8 from")
    return mirrors[0]


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=_FETCH_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took longer than {_FETCH_S} s to fetch a Redis 8") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "").strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        raise Unavailable(f"{command[0]} could not fetch a Redis 8: {last[0]}") from None
    return done.stdout


if __name__ == "__main__":
    port = sys.argv[1] if len(sys.argv) > 1 else "6380"
    command = [*redis8(), "--port", port, "--bind", "127.0.0.1", "--save", ""]
    os.execv(command[0], command)
