"""Show, check, test, plan and apply policies: what the policy pages do, without how they look.

With `policies: {source: store}` the registry says what is in force, and takes changes. Where policies come from files,
these are shown and checked, and a person saves an edit. Plans and tests run in processes of their own, as they take
seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import orjson

from cache.store.base import Store, StoreUnavailable
from gateway.errors import Conflict
from gateway.parts.console.page import PageError, PolicyPlaces
from gateway.parts.console.policy_check import CheckedText, PolicyChecker
from gateway.parts.console.records import Records
from gateway.parts.console.thresholds import (
    RecordedRequests,
    Threshold,
    against_record,
    recorded_of,
    thresholds_of,
    with_earlier,
)
from gateway.parts.lab.policy_tests.format import SUFFIXES
from gateway.parts.lint.difference import difference
from gateway.parts.lint.edit import keys_by_line
from gateway.parts.rollout import own_command
from gateway.parts.rollout.policy import RolloutSections
from gateway.parts.rollout.stored_policies import StoredPolicies
from policies.errors import ConfigError
from policies.loader import policy_files, read_policy

_LONGEST_RUN_S: Final = 120.0
_RECORD_KEPT_S: Final = 10.0
"""How long recorded requests that were read for a surface serve further checks of an edit."""
_SURFACES_KEPT: Final = 8


class NoSuchPolicy(PageError):
    """There is no policy of that surface, or no such version of it; the message says what there is."""

    status, title = 404, "No such policy"


class NotApplied(Exception):
    """A change that was refused; the message is for whoever asked for it."""


class PolicyDesk:
    """Show, check, test, plan and apply policies."""

    def __init__(self, archive: Records, store: Store, places: PolicyPlaces) -> None:
        self._archive = archive
        self._stored = StoredPolicies(store)
        self._places = places
        self._checker = PolicyChecker(places.source, places.deployment)
        self._running = asyncio.Lock()
        """Held while a plan is made or tests run: one at a time."""
        self._reading = asyncio.Lock()
        self._recorded: dict[str, tuple[float, RecordedRequests]] = {}

    async def listed(self) -> dict[str, Any]:
        """Return what is in force on each surface."""
        if await self._from_store():
            return {"source": "store", **await self._stored.status()}
        policies = [policy for policy, _ in await asyncio.to_thread(lambda: list(self._files()))]
        surfaces = [
            {
                "surface": policy.surface,
                "policy": policy.label,
                "candidate": None,
                "since": None,
                "author": "",
                "message": policy.description,
            }
            for policy in policies
        ]
        return {"source": "files", "surfaces": surfaces, "drift": [], "replicas": []}

    async def policy(self, surface: str, version: str = "") -> dict[str, Any]:
        """Return a surface's policy: its text, who set each line, its findings and its history. Raises NoSuchPolicy."""
        if not await self._from_store():
            return await asyncio.to_thread(self._in_files, surface)
        try:
            shown = await self._stored.policy(surface, version)
        except Conflict as error:
            raise NoSuchPolicy(str(error)) from None
        return {"source": "store", **shown, "history": _with_parents(shown["history"])}

    async def text_in_force(self, surface: str, version: str = "") -> str:
        """Return the text in force, or that of a version. Raises NoSuchPolicy."""
        if not await self._from_store():
            return str((await asyncio.to_thread(self._in_files, surface))["text"])
        try:
            return await self._stored.text(surface, version)
        except Conflict as error:
            raise NoSuchPolicy(str(error)) from None

    async def examined(self, surface: str, text: str, before: str) -> dict[str, Any]:
        """Return what there is to say about a text with_earlier another: `findings`, `thresholds` and `changes`.

        `before` is mostly the text in force. Raises QueryError.
        """
        recorded = await self._recorded_of(surface)
        return await asyncio.to_thread(self._examined, text, before, recorded)

    def _examined(self, text: str, before: str, recorded: RecordedRequests) -> dict[str, Any]:
        edited = self._checker.check(text)
        same = before.replace("\r\n", "\n") == edited.text
        old = edited if same else self._checker.check(before)
        shown = edited if edited.policy is not None else old
        thresholds = _thresholds(shown, recorded)
        if shown is edited and not same:
            thresholds = with_earlier(thresholds, _thresholds(old, recorded))
        more = against_record(edited.policy, edited.document, recorded) if edited.policy and edited.document else []
        if edited.policy and edited.document and old.policy and not same:
            unguarded = RolloutSections.unguarded_quality(difference(old.policy, edited.policy).paths, edited.policy)
            edited = edited if unguarded is None else edited.with_problem(edited.document.locate(unguarded))
        return {
            "findings": edited.findings(more), "valid": edited.policy is not None,
            "thresholds": [threshold.as_json() for threshold in thresholds], "requests": len(recorded.rows),
            "query_ms": recorded.query_ms, "changes": None if same else _changes(old, edited),
        }  # fmt: skip

    async def _recorded_of(self, surface: str) -> RecordedRequests:
        """Return the surface's newest requests, read anew if those at hand are older than _RECORD_KEPT_S."""
        async with self._reading:
            read_at, recorded = self._recorded.pop(surface, (0.0, None))
            if recorded is None or time.monotonic() - read_at > _RECORD_KEPT_S:
                read_at, recorded = time.monotonic(), await recorded_of(self._archive, surface)
            self._recorded[surface] = (read_at, recorded)
            while len(self._recorded) > _SURFACES_KEPT:
                del self._recorded[next(iter(self._recorded))]
            return recorded

    async def plan(self, text: str) -> dict[str, Any]:
        """Return what a text would change, by `tierline policy plan`. Raises NotApplied if there is no plan."""
        with self._checker.file_of(text) as file:
            words = ["policy", "plan", str(file), "--since", "1d", "--json", "--ledger", str(self._places.ledger)]
            if await self._from_store():
                words += ["--from-store", "--store", self._places.store_url]
            else:
                words += ["--policies", str(self._places.source.directory)]
            words += ["--config", str(self._places.config)] if self._places.config else []
            return await self._report_of(words, "the plan", file)

    async def tested(self, surface: str, text: str) -> dict[str, Any]:
        """Return how the surface's tests go with a text, by `tierline policy test`. Raises NotApplied without tests."""
        file = await asyncio.to_thread(self._file_of_surface, surface)
        beside_it = [test for suffix in SUFFIXES if (test := file.with_name(file.stem + suffix)).is_file()]
        if not beside_it:
            raise NotApplied(f"There are no tests: no {file.stem}{SUFFIXES[0]} in {file.parent}.")
        with self._checker.file_of(text, file.name, whole=True) as edited:
            report = await self._report_of(["policy", "test", str(edited), "--json"], "the tests", edited)
        tests = [test for file in report["files"] for test in file["tests"] if test["surface"] == surface]
        [of_policy] = [result for result in report["policies"] if result["surface"] == surface] or [None]
        return {
            "file": beside_it[0].name, "passed": sum(test["passed"] for test in tests),
            "failed": [test for test in tests if not test["passed"]], "ms": sum(test["ms"] for test in tests),
            "of_policy": of_policy,
        }  # fmt: skip

    async def _report_of(self, words: list[str], what: str, file: Path) -> dict[str, Any]:
        """Return what a command of ours prints as JSON. Raises NotApplied where it prints none.

        The folder of `file` is there for the command alone, so no message names it.
        """
        async with self._running:
            code, output, errors = await _run(words, what)
        errors = errors.replace(f"{file.parent}/", "")
        try:
            report: dict[str, Any] = orjson.loads(output)
        except orjson.JSONDecodeError:
            raise NotApplied(errors or f"{what} ended with exit code {code} and no output") from None
        return report

    async def apply(
        self,
        surface: str,
        text: str,
        *,
        how: str,
        author: str,
        message: str,
        base: str,
        may_change: Callable[[str], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """Apply a text to its surface, if the version `base` is still in force. Raises NotApplied.

        `may_change`: see `gateway.parts.rollout.registry.apply.apply_file`.
        """
        if not await self._from_store():
            file = self._places.source.directory / f"{surface}.yaml"
            raise NotApplied(
                f"Policies come from files here. Save this text as {file}; it is in force within a second. "
                "With `policies: {source: store}` in the config, this page applies it."
            )
        if not message.strip():
            raise NotApplied("Say why: the reason stands in the history, and with_earlier each line that it sets.")
        with self._checker.file_of(text, f"{Path(surface).name}.yaml") as file:
            try:
                return await self._stored.apply(
                    self._places.source, file, surface, how=how, author=author or "console", message=message.strip(),
                    base=base or None,
                    may_change=may_change,
                )  # fmt: skip
            except (ConfigError, Conflict) as error:
                raise NotApplied(str(error).replace(f"{file.parent}/", "")) from None
            except StoreUnavailable as down:
                raise NotApplied(f"The store does not answer ({down}); nothing was changed.") from None

    async def _from_store(self) -> bool:
        if self._places.deployment.policies.source == "store":
            return True
        try:
            return await self._stored.followed()
        except (StoreUnavailable, Conflict):
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
                    "lines": _unblamed(text), "history": [],
                }  # fmt: skip
        raise NoSuchPolicy(f"There is no policy of {surface!r} in {self._places.source.directory}.")

    def _file_of_surface(self, surface: str) -> Path:
        """Return the surface's file in the policies' folder, or where it would be."""
        by_name = self._places.source.directory / f"{Path(surface).name}.yaml"
        return next((file for policy, file in self._files() if policy.surface == surface), by_name)


def _thresholds(checked: CheckedText, recorded: RecordedRequests) -> list[Threshold]:
    """Return the thresholds of a text over these requests; none where it cannot be read."""
    if checked.policy is None or checked.document is None:
        return []
    return thresholds_of(checked.policy, checked.document, recorded)


def _changes(old: CheckedText, new: CheckedText) -> dict[str, Any]:
    """Return how two texts differ: by meaning, where both can be read, and line by line."""
    meant = None
    if old.policy is not None and new.policy is not None and new.document is not None:
        document = new.document
        meant = asdict(difference(old.policy, new.policy, lambda path: document.problem(path, "").line))
    lines = list(difflib.unified_diff(old.text.splitlines(), new.text.splitlines(), n=2, lineterm=""))[2:]
    kinds = {"+": "added", "-": "removed", "@": "place"}
    return {"meant": meant, "lines": [{"kind": kinds.get(line[:1], ""), "text": line} for line in lines]}


def _with_parents(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a surface's changes, newest first, each with the `parent` that its version is compared with: the version
    of the change before it; '' for the first."""
    parents = [later["version"] for later in history[1:]] + [""]
    return [
        {**change, "parent": parent if parent != change["version"] else ""}
        for change, parent in zip(history, parents, strict=True)
    ]


def _unblamed(text: str) -> list[dict[str, Any]]:
    """Return the lines of a text of which nobody knows who set them."""
    keys = keys_by_line(text)
    return [
        {"line": number, "text": line, "key": keys.get(number, ""), "version": "", "author": "", "message": "", "at": 0}
        for number, line in enumerate(text.splitlines(), 1)
    ]


async def _run(words: list[str], what: str) -> tuple[int | None, bytes, str]:
    """Run a command of ours; return its exit code, its output, and the end of its errors."""
    process = await own_command.start(words)
    try:
        async with asyncio.timeout(_LONGEST_RUN_S):
            output, errors = await process.communicate()
    except TimeoutError:
        return None, b"", f"{what} took longer than {_LONGEST_RUN_S:.0f} s and was stopped"
    finally:
        await own_command.end(process)
    return process.returncode, output, errors.decode(errors="replace").strip()[-2000:]
