"""Provide the seam `redaction`, of which `gateway.config.schema` declares what checks the config's keys.

The config's `telemetry.redact` are regular expressions, whose matches become `[redacted]`; `telemetry.redact_with` is a
function of yours, `module:function`, that takes a text and returns what may be kept of it. Both run in a thread of
their own. Where one raises, or takes too long, nothing of the texts is kept.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from gateway.telemetry import names

if TYPE_CHECKING:
    from gateway.steps import Core
    from gateway.telemetry.trace import Hop, Trace

REDACTED: Final = "[redacted]"
_WITHIN_S: Final = 2.0
"""Seconds that the texts of one batch of requests may take."""

Hook = Callable[[str], object]
_Job = tuple[Sequence[str], "asyncio.Future[list[str]]", asyncio.AbstractEventLoop]


class RedactionFailed(Exception):
    """A hook raised, returned no text, or was not done in time; nothing of the texts may be kept."""


class TextRedactor:
    """Apply patterns, then a hook, to texts, in one daemon thread that starts with the first of them."""

    def __init__(
        self,
        patterns: Sequence[str],
        hook: Hook | None = None,
        within_s: float = _WITHIN_S,
        dropped: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        """Compile the patterns. `dropped` counts requests whose texts are lost, by reason. Raises re.error."""
        self._dropped = dropped
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._hook = hook
        self._within_s = within_s
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._late: asyncio.Future[list[str]] | None = None

    def redacted(self, text: str) -> str:
        """Return what may be kept of a text. Raises whatever the hook raises, and TypeError if it returns no text."""
        for pattern in self._patterns:
            text = pattern.sub(REDACTED, text)
        if self._hook is not None:
            kept = self._hook(text)
            if not isinstance(kept, str):
                raise TypeError("a redaction hook must return a text")
            return kept
        return text

    async def kept_of(self, text: str) -> str | None:
        """Return what may be kept of a text; None if that is not known."""
        try:
            return (await self.kept_of_all([text]))[0]
        except RedactionFailed:
            self._dropped("redaction_failed", 1)
            return None

    async def redact(self, traces: Sequence[Trace]) -> None:
        """Replace the captured texts of requests by what may be kept of them."""
        texts = [text for trace in traces if trace.captures for text in _texts_of(trace)]
        if not texts:
            return
        try:
            redacted = await self.kept_of_all([text.joined for text in texts])
        except RedactionFailed:
            self._dropped("redaction_failed", len(traces))
            redacted = [""] * len(texts)
        for text, kept in zip(texts, redacted, strict=True):
            text.replace(kept)

    async def kept_of_all(self, texts: Sequence[str]) -> list[str]:
        """Return what may be kept of these texts, in their order. Raises RedactionFailed.

        While a call that took too long has not ended, all others fail at once.
        """
        if self._late is not None and not self._late.done():
            raise RedactionFailed
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tierline.redaction", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[str]] = loop.create_future()
        self._jobs.put((texts, done, loop))
        try:
            return await asyncio.wait_for(asyncio.shield(done), self._within_s)
        except TimeoutError:
            self._late = done
            done.add_done_callback(_forget)
            raise RedactionFailed from None

    def _work(self) -> None:
        while True:
            texts, done, loop = self._jobs.get()
            result: list[str] | None
            try:
                result = [self.redacted(text) for text in texts]
            except Exception:  # noqa: BLE001  (a hook is somebody else's code)
                result = None
            try:
                loop.call_soon_threadsafe(_settle, done, result)
            except RuntimeError:  # the loop is closed: the gateway did not wait for this thread
                return


def _settle(done: asyncio.Future[list[str]], result: list[str] | None) -> None:
    if done.done():
        return
    if result is None:
        done.set_exception(RedactionFailed())
    else:
        done.set_result(result)


def _forget(done: asyncio.Future[list[str]]) -> None:
    if not done.cancelled():
        done.exception()


class _CapturedText:
    """One captured text of a hop, or the tokens of one."""

    def __init__(self, hop: Hop, name: str) -> None:
        self._hop = hop
        self._name = name
        self._value: str | list[str] = hop.attributes[name]
        self.joined = self._value if isinstance(self._value, str) else "".join(self._value)

    def replace(self, kept: str) -> None:
        """Keep `kept` in place of the captured text; '' deletes it.

        A text that was captured as a list of tokens is deleted whole as soon as anything was removed from it, as that
        may be spread over several tokens.
        """
        if kept == self.joined and kept:
            return
        if kept and isinstance(self._value, str):
            self._hop.attributes[self._name] = kept
        else:
            del self._hop.attributes[self._name]
            if self._name == names.PREFIX_TOKENS:
                self._hop.attributes.pop(names.LOWEST_TOKENS, None)


def _texts_of(trace: Trace) -> list[_CapturedText]:
    return [
        _CapturedText(hop, name)
        for hop in trace.hops
        for name in hop.attributes.keys() & names.TEXTS
        if name != names.LOWEST_TOKENS  # they go with PREFIX_TOKENS
    ]


def build_redactor(core: Core) -> TextRedactor | None:
    """Return what redacts a worker's captured texts; None where the config asks for nothing."""
    config = core.deployment.telemetry
    if not config.redact and config.redact_with is None:
        return None
    hook = None if config.redact_with is None else hook_of(config.redact_with)
    return TextRedactor(config.redact, hook, dropped=core.metrics.telemetry_dropped)


def check_pattern(pattern: str) -> None:
    """Check a regular expression of `telemetry.redact`. Raises ValueError."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None


def check_hook(name: str) -> None:
    """Check `telemetry.redact_with`. Raises ValueError."""
    hook_of(name)


def hook_of(name: str) -> Hook:
    """Return the function that `module:function` names. Raises ValueError, whose message ends a sentence."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"{name!r} is not of the form module:function")
    try:
        hook = getattr(importlib.import_module(module), function)
    except Exception as error:  # noqa: BLE001  (importing somebody else's module may raise anything)
        raise ValueError(f"{name!r} cannot be imported: {error}") from None
    if not callable(hook):
        raise ValueError(f"{name!r} is no function")
    return hook  # type: ignore[no-any-return]
