"""Build a release and prove it, without publishing anything: `make release`, or `python -m tools.release`.

It takes the tag of the commit that is checked out, builds the sdist, and from it the wheels: of `tierline`, and of each
part that is a distribution of its own. Into one clean environment it installs `tierline` alone, into another all of
them, with the locked dependencies, and lets each answer a request. Beside the wheels it writes an SBOM of both
environments (CycloneDX), attestations where there is an identity to sign with, and SHA256SUMS.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.parts.standard import PARTS

ROOT = Path(__file__).resolve().parents[1]
_START_S = 120.0
_EPILOG = """examples:
  git tag v0.2.0 && make release      build and prove 0.2.0, which CHANGELOG.md has to describe, into dist/
  make release ARGS="--out /tmp/0.2"  the same, into another folder
  twine upload dist/*.whl dist/*.gz   publish it; this is never done for you

exit codes: 0 the release is built and proven, 1 it is not, 2 the checkout is not one to release"""


class Refused(Exception):
    """The checkout is not one to release; the message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build into `--out`; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.release",
        description=(__doc__ or "").partition("\n\n")[2],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty or new folder (default: dist)")
    args = parser.parse_args(arguments)
    try:
        version = releasable(ROOT, args.out)
    except Refused as refused:
        print(f"release: {refused}", file=sys.stderr)
        return 2
    out = args.out.resolve()
    try:
        build(out, version)
        for name, wheels, proof in (("base", "tierline-*.whl", prove_base), ("all", "*.whl", prove_all)):
            with tempfile.TemporaryDirectory() as folder:
                python = installed(name, sorted(out.glob(wheels)), Path(folder))
                prove_version(python, version)
                proof(python, Path(folder))
                write_sbom(out / f"tierline-{name}-{version}.cdx.json", python, version)
        attest(out)
    except (subprocess.SubprocessError, OSError, AssertionError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    (out / "SHA256SUMS").write_text(sums(out))
    print(f"Tierline {version} is in {out}:\n" + (out / "SHA256SUMS").read_text(), end="")
    return 0


def releasable(root: Path, out: Path) -> str:
    """Return the version that the tag of HEAD names.

    Raises:
        Refused: Files are changed, HEAD has no tag of a version, CHANGELOG.md does not describe it, or `out` has files.
    """
    if changed := _git(root, "status", "--porcelain"):
        raise Refused(f"commit, or take back, what is changed first:\n{changed}")
    tags = [tag for tag in _git(root, "tag", "--points-at", "HEAD").split() if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    if len(tags) != 1:
        raise Refused(f"HEAD has {len(tags) or 'no'} tags such as v0.2.0, and needs one: git tag v0.2.0")
    version = tags[0].removeprefix("v")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.M):
        raise Refused(f"CHANGELOG.md has no '## [{version}] - YYYY-MM-DD'; describe the release there, and tag again")
    if out.exists() and any(out.iterdir()):
        raise Refused(f"{out} has files; empty it, or name another folder with --out")
    return version


def distributions() -> list[str]:
    """Return the names of what is built, that of the base first."""
    return ["tierline", *(part.distribution for part in PARTS if part.distribution != "tierline")]


def build(out: Path, version: str) -> None:
    """Build the sdist, and from it a wheel for each distribution."""
    sdist = f"tierline-{version}"
    _run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(out), str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(out / f"{sdist}.tar.gz") as archive:
            archive.extractall(folder)
        for name in distributions():
            source = Path(folder, sdist) if name == "tierline" else Path(folder, sdist, "packages", name)
            _run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(source))
    built = {file.name for file in out.iterdir()}
    wheels = {f"{name.replace('-', '_')}-{version}-py3-none-any.whl" for name in distributions()}
    wanted = {f"{sdist}.tar.gz", *wheels}
    assert built == wanted, f"built {', '.join(sorted(built))}, not {', '.join(sorted(wanted))}"
    _run(sys.executable, "-m", "twine", "check", "--strict", *(str(out / name) for name in built))


def installed(lock: str, wheels: Sequence[Path], folder: Path) -> Path:
    """Install wheels, and what they need by a lock, into a new environment; return its Python."""
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    python = folder / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    for locked in (lock, "weights"):
        file = ROOT / "requirements" / f"{locked}.lock"
        _run(*pip, "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(file))
    _run(*pip, "install", "--quiet", "--no-deps", "--no-index", *map(str, wheels))
    return python


def prove_version(python: Path, version: str) -> None:
    """Ask the installed command for its version."""
    said = _said(python, "--version")
    assert said.stdout == f"tierline {version}\n", f"tierline --version says {said.stdout!r}"


def prove_base(python: Path, folder: Path) -> None:
    """Ask the base alone for an answer, and for a command of each part: it says what to install."""
    trial = ROOT / "deploy" / "trial"
    with _started(python, folder, "up", "--config", f"{trial}/tierline.yaml", "--policies", f"{trial}/policies") as up:
        _ask(up)
    for part in PARTS:
        if part.distribution != "tierline":
            said = _said(python, *part.commands[0].split())
            assert f"pip install {part.distribution}\n" in said.stderr, f"{part.commands[0]} says {said.stderr!r}"


def prove_all(python: Path, folder: Path) -> None:
    """Ask the scripted demo for an answer, and its console for a page."""
    demo = ("demo", "--no-browser", "--minutes", "0.1", "--console-port", "0")
    with _started(python, folder, *demo) as up:
        _ask(up)
        assert b"<html" in _fetch(f"{up['console_url']}/now"), "no console"


@contextmanager
def _started(python: Path, folder: Path, *arguments: str) -> Iterator[dict[str, Any]]:
    """Run a command that starts a gateway; yield what it says of it; end it."""
    state, log = folder / "state", folder / "log.txt"
    command = [str(python.with_name("tierline")), *arguments, "--port", "0", "--state", str(state)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + _START_S
        while not (state / "up.json").exists():
            assert process.poll() is None and time.monotonic() < until, f"it does not start:\n{log.read_text()}"
            time.sleep(0.2)
        yield json.loads((state / "up.json").read_text())
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _ask(up: Mapping[str, Any]) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    answer = json.loads(_fetch(f"{up['url']}/v1/chat/completions", json.dumps(body).encode()))
    assert answer["choices"][0]["message"]["content"], f"no answer: {answer}"


def _said(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(python.with_name("tierline")), *arguments]
    return subprocess.run(command, cwd=python.parent, capture_output=True, text=True, check=False)


def write_sbom(file: Path, python: Path, version: str) -> None:
    """Write what the environment has, as a CycloneDX document whose subject is Tierline."""
    module = ("-m", "cyclonedx_py", "environment", "--mc-type", "application", "--output-reproducible")
    project = ("--pyproject", str(ROOT / "pyproject.toml"))
    _run(sys.executable, *module, *project, "--output-file", str(file), str(python))
    document = json.loads(file.read_text())
    # The version is dynamic in pyproject.toml, so it is not known there.
    document["metadata"]["component"] |= {"version": version, "purl": f"pkg:pypi/tierline@{version}"}
    file.write_text(json.dumps(document, indent=1) + "\n")


def attest(out: Path) -> None:
    """Sign the wheels and the sdist with the identity of the CI job that this runs in, and say so if there is none."""
    detect = "import sys; from sigstore.oidc import detect_credential; sys.exit(detect_credential() is None)"
    if subprocess.run([sys.executable, "-c", detect], check=False).returncode:
        print("No attestations are written: there is no identity to sign with outside a CI job that has one (OIDC).")
        return
    files = sorted(str(file) for file in out.iterdir() if file.suffix in (".whl", ".gz"))
    _run(sys.executable, "-m", "pypi_attestations", "sign", *files)


def sums(out: Path) -> str:
    """Return a line for each file, as `sha256sum --check` reads them."""
    files = sorted(file for file in out.iterdir() if file.name != "SHA256SUMS" and not file.name.startswith("."))
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def _run(*command: str) -> None:
    print("$", *(word.removeprefix(f"{ROOT}/") for word in command), flush=True)
    # The date of every file in the sdist and the wheel: two builds of a commit are the same.
    env = os.environ | {"SOURCE_DATE_EPOCH": _git(ROOT, "log", "-1", "--format=%ct")}
    subprocess.run(command, cwd=ROOT, env=env, check=True)


def _fetch(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return bytes(reply.read())


if __name__ == "__main__":
    sys.exit(main())
