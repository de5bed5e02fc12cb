"""Build a release and prove it, without publishing anything: `make release`, or `python -m tools.release`.

It takes the tag of the commit that is checked out, builds the sdist and from it the wheel, installs that wheel with the
locked dependencies into a clean environment, and lets it answer a request there. Beside them it writes an SBOM of that
environment (CycloneDX), attestations where there is an identity to sign with, and SHA256SUMS.
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
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_START_S = 120.0
_EPILOG = """examples:
  git tag v0.2.0 && make release      build and prove 0.2.0, which CHANGELOG.md has to describe, into dist/
  make release ARGS="--out /tmp/0.2"  the same, into another folder
  twine upload dist/tierline-0.2.0*   publish it; this is never done for you

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
        with tempfile.TemporaryDirectory() as folder:
            python = installed(out, Path(folder))
            prove(python, version, Path(folder))
            write_sbom(out / f"tierline-{version}.cdx.json", python, version)
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


def build(out: Path, version: str) -> None:
    """Build the sdist, and from it the wheel."""
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))
    built = {file.name for file in out.iterdir()}
    wanted = {f"tierline-{version}.tar.gz", f"tierline-{version}-py3-none-any.whl"}
    assert built == wanted, f"built {', '.join(sorted(built))}, not {', '.join(sorted(wanted))}"
    _run(sys.executable, "-m", "twine", "check", "--strict", *(str(out / name) for name in built))


def installed(out: Path, folder: Path) -> Path:
    """Install the wheel, and what it needs by the locks, into a new environment; return its Python."""
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    python = folder / "venv" / "bin" / "python"
    install = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps")
    for lock in ("serve", "weights"):
        _run(*install, "--require-hashes", "-r", str(ROOT / "requirements" / f"{lock}.lock"))
    _run(*install, "--no-index", *(str(wheel) for wheel in out.glob("*.whl")))
    return python


def prove(python: Path, version: str, folder: Path) -> None:
    """Ask the installed command for its version, and the scripted demo that it starts for an answer."""
    command = str(python.with_name("tierline"))
    said = subprocess.run([command, "--version"], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert said == f"tierline {version}\n", f"tierline --version says {said!r}"
    state, log = folder / "state", folder / "demo.txt"
    demo = [command, "demo", "--no-browser", "--minutes", "0.1", "--port", "0", "--console-port", "0"]
    with log.open("wb") as file:
        process = subprocess.Popen([*demo, "--state", str(state)], cwd=folder, stdout=file, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + _START_S
        while not (state / "up.json").exists():
            assert process.poll() is None and time.monotonic() < until, f"the demo does not start:\n{log.read_text()}"
            time.sleep(0.2)
        up = json.loads((state / "up.json").read_text())
        body = {"model": "chat", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        answer = json.loads(_fetch(f"{up['url']}/v1/chat/completions", json.dumps(body).encode()))
        assert answer["choices"][0]["message"]["content"], f"no answer: {answer}"
        assert b"<html" in _fetch(f"{up['console_url']}/now"), "no console"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


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
    """Sign the wheel and the sdist with the identity of the CI job that this runs in, and say so if there is none."""
    detect = "import sys; from sigstore.oidc import detect_credential; sys.exit(detect_credential() is None)"
    if subprocess.run([sys.executable, "-c", detect], check=False).returncode:
        print("No attestations are written: there is no identity to sign with outside a CI job that has one (OIDC).")
        return
    files = sorted(str(file) for file in out.glob("tierline-*") if file.suffix in (".whl", ".gz"))
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
