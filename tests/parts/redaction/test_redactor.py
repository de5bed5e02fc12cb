from __future__ import annotations

import asyncio
import threading
import time

import pytest

from gateway.parts.redaction.part import RedactionFailed, TextRedactor, hook_of


async def test_patterns_come_before_the_hook() -> None:
    """Each text in its place, in another thread than the event loop's."""
    threads: set[str] = set()

    def hook(text: str) -> str:
        threads.add(threading.current_thread().name)
        return text.upper()

    redactor = TextRedactor([r"\d+", "secret"], hook)
    assert await redactor.kept_of_all(["call 555", "a secret", ""]) == ["CALL [REDACTED]", "A [REDACTED]", ""]
    assert threads == {"tierline.redaction"}


async def test_a_hook_that_does_not_return_a_text_fails() -> None:
    with pytest.raises(RedactionFailed):
        await TextRedactor([], lambda _: None).kept_of_all(["x"])
    with pytest.raises(RedactionFailed):
        await TextRedactor([], lambda text: text[9]).kept_of_all(["x"])


async def test_a_hook_that_hangs_is_waited_for_once() -> None:
    """Until it ends, all others fail at once; after that it is used again."""
    release = threading.Event()

    def hook(text: str) -> str:
        release.wait(30)
        return text

    redactor = TextRedactor([], hook, within_s=0.05)
    with pytest.raises(RedactionFailed):
        await redactor.kept_of_all(["x"])
    began = time.monotonic()
    with pytest.raises(RedactionFailed):
        await redactor.kept_of_all(["y"])
    assert time.monotonic() - began < 0.04
    release.set()
    async with asyncio.timeout(10):
        while redactor._late is not None and not redactor._late.done():
            await asyncio.sleep(0.001)
    assert await redactor.kept_of_all(["z"]) == ["z"]


@pytest.mark.parametrize("name", ["html", "html:", "no_such_module:f", "html:no_such", "html:__name__"])
def test_a_name_that_leads_nowhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name.partition(":")[0]):
        hook_of(name)
