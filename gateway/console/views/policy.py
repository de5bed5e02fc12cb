"""The policies: which are in force, who set each line, what is wrong with an edit, what it would do, and applying it.

With `policies: {source: store}` the registry says what is in force, and takes changes. Where policies come from files,
the page shows and checks them, and says where to save an edit. Plans run in a process of their own, as they replay the
ledger for seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from cache.store.base import Store, StoreUnavailable
from gateway.config.schema import Deployment
from gateway.config.warnings import findings_in
from gateway.registry.apply import How, apply_file
from gateway.registry.registry import PolicyRegistry, RegistryError
from gateway.registry.view import blamed, history_of, shown, status_of
from policies.codes import is_error
from policies.edit import keys_by_line
from policies.errors import ConfigError, Problem
from policies.loader import DEFAULTS, PolicySource, policy_files, read_policy

HOWS: Final[Mapping[str, str]] = {
    "": "as its `rollout` says: a canary if it has one, else at once",
    "canary": "canary: served to the shares in its `rollout`, step by step",
    "evaluate": "evaluate: only decide with it, beside the policy in force",
    "now": "at once, for everybody",
}
_LONGEST_PLAN_S: Final = 120.0
_OUTPUT_MOST: Final = 32 << 20
_HOW: Final[Mapping[str, How | None]] = {"": None, "canary": "canary", "evaluate": "evaluate", "now": "now"}


class NoSuchPolicy(LookupError):
    """There is no policy of that surface, or no such version of it; the message says what there is."""


class NotApplied(Exception):
    """A change that was refused; the message is for whoever asked for it."""


@dataclass(frozen=True, slots=True)
class PolicyPlaces:
    """What the policies are checked against and planned with: the deployment, its policy folder, and the ledger's."""

    deployment: Deployment
    source: PolicySource
    ledger: Path
    config: Path | None
    store_url: str


class PolicyDesk:
    """Show, check, plan and apply policies."""

    def __init__(self, store: Store, places: PolicyPlaces) -> None:
        self._registry = PolicyRegistry(store)
        self._places = places
        self._planning = asyncio.Lock()

    async def listed(self) -> dict[str, Any]:
        """Return what is in force on each surface, with the latest changes."""
        if await self._from_store():
            status = await status_of(self._registry)
            return {"source": "store", **status, "changes": (await history_of(self._registry))[:20]}
        policies = [policy for policy, _ in await asyncio.to_thread(lambda: list(self._files()))]
        surfaces = [
            {"surface": policy.surface, "policy": policy.label, "candidate": None, "description": policy.description}
            for policy in policies
        ]
        return {"source": "files", "surfaces": surfaces, "changes": [], "drift": [], "replicas": []}

    async def policy(self, surface: str, version: str = "") -> dict[str, Any]:
        """Return a surface's policy: its text, who set each line, its findings and its history. Raises NoSuchPolicy."""
        if not await self._from_store():
            return await asyncio.to_thread(self._in_files, surface)
        try:
            found = await shown(self._registry, surface, version)
            state = await status_of(self._registry, surface)
            blame = (await blamed(self._registry, surface))["lines"] if not version else _unblamed(found["text"])
            history = await history_of(self._registry, surface)
        except RegistryError as error:
            raise NoSuchPolicy(str(error)) from None
        return {
            "source": "store",
            **found,
            "in_force": state["surfaces"][0],
            "lines": blame,
            "history": history,
            "findings": await self.findings(found["text"]),
        }

    async def findings(self, text: str) -> list[dict[str, Any]]:
        """Return every mistake in a policy's text, at its line."""
        return await asyncio.to_thread(self._findings, text)

    async def plan(self, text: str) -> dict[str, Any]:
        """Return what a text would change, by `tierline policy plan`. Raises NotApplied if there is no plan."""
        with self._file_of(text) as file:
            words = ["policy", "plan", str(file), "--since", "1d", "--json", "--ledger", str(self._places.ledger)]
            if await self._from_store():
                words += ["--from-store", "--store", self._places.store_url]
            else:
                words += ["--policies", str(self._places.source.directory)]
            words += ["--config", str(self._places.config)] if self._places.config else []
            async with self._planning:
                code, output, errors = await _run(words)
        try:
            plan: dict[str, Any] = orjson.loads(output)
        except orjson.JSONDecodeError:
            raise NotApplied(errors or f"the plan ended with exit code {code} and no output") from None
        return plan

    async def apply(self, surface: str, text: str, *, how: str, author: str, message: str, base: str) -> dict[str, Any]:
        """Apply a text to its surface, if the version `base` is still in force. Raises NotApplied."""
        if not await self._from_store():
            file = self._places.source.directory / f"{surface}.yaml"
            raise NotApplied(
                f"Policies come from files here. Save this text as {file}; it is in force within a second. "
                "With `policies: {source: store}` in the config, this page applies it."
            )
        if not message.strip():
            raise NotApplied("Say why: the reason stands in the history, and beside each line that it sets.")
        with self._file_of(text, surface) as file:
            try:
                applied = await apply_file(
                    self._registry, self._places.source, file, how=_HOW[how], author=author or "console",
                    message=message.strip(), at=time.time(), base=base or None, surface=surface,
                )  # fmt: skip
            except (ConfigError, RegistryError) as error:
                raise NotApplied(str(error)) from None
            except StoreUnavailable as down:
                raise NotApplied(f"The store does not answer ({down}); nothing was changed.") from None
        return {"policy": applied.version.label, "how": applied.how}

    async def _from_store(self) -> bool:
        if self._places.deployment.policies.source == "store":
            return True
        try:
            return bool(await self._registry.replicas())
        except (StoreUnavailable, RegistryError):
            return False

    def _files(self) -> Iterator[tuple[Any, Path]]:
        for file in policy_files(self._places.source.directory):
            with contextlib.suppress(ConfigError):
                yield read_policy(file, self._places.source.tiers)[0], file

    def _in_files(self, surface: str) -> dict[str, Any]:
        for policy, file in self._files():
            if policy.surface == surface:
                text = file.read_text("utf-8-sig")
                return {
                    "source": "files", "surface": surface, "version": policy.version, "policy": policy.label,
                    "state": "in force", "text": text, "file": str(file), "in_force": {"candidate": None},
                    "lines": _unblamed(text), "history": [], "findings": self._findings(text),
                }  # fmt: skip
        raise NoSuchPolicy(f"There is no policy of {surface!r} in {self._places.source.directory}.")

    def _findings(self, text: str) -> list[dict[str, Any]]:
        with self._file_of(text) as file:
            try:
                policy, document = read_policy(file, self._places.source.tiers)
            except ConfigError as error:
                problems = list(error.problems)
            else:
                problems = findings_in(policy, document, self._places.deployment)
        return [_finding(problem) for problem in problems]

    @contextlib.contextmanager
    def _file_of(self, text: str, surface: str = "policy") -> Iterator[Path]:
        """Yield a file with this text, beside a copy of the folder's defaults."""
        with tempfile.TemporaryDirectory(prefix="tierline-console-") as folder:
            file = Path(folder, f"{Path(surface).name}.yaml")
            file.write_text(text.replace("\r\n", "\n"), encoding="utf-8")
            defaults = self._places.source.directory / DEFAULTS
            if defaults.is_file():
                Path(folder, DEFAULTS).write_bytes(defaults.read_bytes())
            yield file


def _finding(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code, "line": problem.line, "column": problem.column, "key": problem.key,
        "message": problem.message, "mend": problem.mend, "error": is_error(problem.code),
    }  # fmt: skip


def _unblamed(text: str) -> list[dict[str, Any]]:
    """Return the lines of a text of which nobody knows who set them."""
    keys = keys_by_line(text)
    return [
        {"line": number, "text": line, "key": keys.get(number, ""), "version": "", "author": "", "message": "", "at": 0}
        for number, line in enumerate(text.splitlines(), 1)
    ]


async def _run(words: list[str]) -> tuple[int | None, bytes, str]:
    """Run a command of ours; return its exit code, its output, and the end of its errors."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe,
        limit=_OUTPUT_MOST,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_LONGEST_PLAN_S):
            output, errors = await process.communicate()
    except TimeoutError:
        return None, b"", f"the plan took longer than {_LONGEST_PLAN_S:.0f} s and was stopped"
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, output, errors.decode(errors="replace").strip()[-2000:]
