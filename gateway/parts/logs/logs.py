"""Write the process's log to stderr, as text or JSON lines from a thread of its own, with a line for each request.

    2026-01-02 03:04:05,678 WARNING tierline.cache: the message
    {"time":"2026-01-02T03:04:05.678+00:00","level":"warning","logger":"tierline.cache","message":"the message"}

Logging never blocks: if stderr is not read or its disk is full, lines are dropped and counted in
`tierline_log_dropped_total`, and a later line says how many are missing. Control characters are escaped, and further
lines of a text message are indented, so that no logged text can pass for a line of the log.

`logging.handlers.QueueListener` also has a writing thread, but waits for it without a time limit when it stops; so
LineWriter is used, by `tierline up` for its terminal too.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import re
import select
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import orjson

from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace

if TYPE_CHECKING:
    from gateway.parts.logs.config import LogConfig

_MOST: Final = 1024
_NOTICE_EVERY_S: Final = 1.0

T = TypeVar("T")


class LineWriter(Generic[T]):
    """Queue items from any thread and write each as a line. Call `close`, or queued items are lost at exit."""

    def __init__(self, descriptor: int, render: Callable[[T], bytes], notice: Callable[[int], bytes]) -> None:
        """Start the writing thread.

        `render` makes an item's line, in that thread; `notice` makes the line that reports how many lines were dropped.
        The descriptor is written to directly: a thread that hangs in a Python stream object holds its lock, and the
        interpreter could then not exit.
        """
        self._descriptor = descriptor
        self._render = render
        self._notice = notice
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._refused = 0
        self._failed = 0
        self._noticed = 0
        self._notice_at = 0.0
        self._thread = threading.Thread(target=self._run, name="tierline.lines", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of lines dropped because the queue was full or writing failed."""
        return self._refused + self._failed

    def put(self, item: T) -> None:
        """Queue an item, or drop and count it if 1,024 are waiting. Never blocks, never raises."""
        if self._queue.qsize() >= _MOST:
            self._refused += 1
        else:
            self._queue.put(item)

    def close(self, limit_s: float = 1.0) -> None:
        """Write what is queued, for at most `limit_s` seconds, and end the thread."""
        self._queue.put(None)
        self._thread.join(limit_s)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._write(self._render(item))
            except Exception:  # noqa: BLE001  (a full disk, a terminal that is gone, an item that cannot be rendered)
                self._failed += 1
            else:
                self._report()
        with contextlib.suppress(OSError):
            self._report(last=True)

    def _report(self, *, last: bool = False) -> None:
        """Write a notice of the dropped lines now that writing works again; at most once a second, and at the end."""
        missing, now = self.dropped - self._noticed, time.monotonic()
        if missing and (last or now >= self._notice_at or self._queue.empty()):
            self._noticed, self._notice_at = self.dropped, now + _NOTICE_EVERY_S
            self._write(self._notice(missing))

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process that shares the descriptor has made it so
                select.select((), (self._descriptor,), ())


_STDERR: Final = 2
_LONGEST: Final = 16_384
"""Longest message in characters; longer ones are cut."""
_REQUESTS: Final = "tierline.requests"
# All control characters except tab and newline, and two separators that end a line in some viewers.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_OURS: Final = ("tierline", "uvicorn")

_Item = logging.LogRecord | tuple[Trace, Ledger]
_Line = Callable[[float, str, str, str, Mapping[str, Any]], bytes]
"""Make a line from Unix seconds, level, logger name, message and the message's fields."""


class _Handler(logging.handlers.QueueHandler):
    """Format the message with its arguments and traceback, and pass it to the writing thread."""

    def __init__(self, writer: LineWriter[_Item]) -> None:
        super().__init__(writer)  # type: ignore[arg-type]  # only `enqueue` would use it as a queue
        self._writer = writer

    def enqueue(self, record: logging.LogRecord) -> None:
        self._writer.put(record)

    def close(self) -> None:
        """Write what is queued; called by `logging` at the end of the process."""
        self._writer.close()
        super().close()


_writer: LineWriter[_Item] | None = None


def configure(config: LogConfig) -> None:
    """Send this process's log to stderr; do nothing if a log handler is already set.

    `config.level` applies to the loggers of Tierline and uvicorn. Other libraries log warnings and above only, because
    at lower levels some of them log headers and with them keys.
    """
    global _writer  # noqa: PLW0603  (a process has one log, as it has one stderr)
    if logging.root.handlers:
        return
    line = _json if config.format == "json" else _text
    _writer = LineWriter(_STDERR, lambda item: _rendered(item, line), lambda missing: _missing(missing, line))
    level = logging.getLevelNamesMapping()[config.level.upper()]
    logging.basicConfig(level=max(level, logging.WARNING), format="%(message)s", handlers=[_Handler(_writer)])
    for name in _OURS:
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(True)


def dropped_lines() -> int:
    """Return how many lines of this process's log were dropped."""
    return 0 if _writer is None else _writer.dropped


def log_request(trace: Trace, ledger: Ledger) -> None:
    """Log the line of a finished request, which must not change any more. It holds no prompt and no key."""
    if _writer is not None:
        _writer.put((trace, ledger))


def _rendered(item: _Item, line: _Line) -> bytes:
    if isinstance(item, logging.LogRecord):
        return line(item.created, item.levelname, item.name, item.getMessage(), {})
    trace, ledger = item
    ended = trace.started_unix_ns / 1e9 + trace.root.seconds
    return line(ended, "INFO", _REQUESTS, "request", _fields(ledger))


def _missing(count: int, line: _Line) -> bytes:
    message = f"{count} log lines are missing here: they could not be written fast enough"
    return line(time.time(), "WARNING", "tierline.log", message, {})


def _fields(ledger: Ledger) -> dict[str, Any]:
    """Return the fields of a request's line; times in milliseconds, money in US dollars."""
    return {
        "request_id": ledger.request_id,
        "tenant": ledger.tenant,
        "surface": ledger.surface,
        "path": ledger.path,
        "tier": ledger.tier,
        "status": ledger.status,
        "error": ledger.error,
        "duration_ms": round(ledger.total_ms, 1),
        "ttft_ms": None if ledger.ttft_ms is None else round(ledger.ttft_ms, 1),
        "tokens_in": ledger.tokens_in,
        "tokens_out": ledger.tokens_out,
        "cost_usd": round(ledger.cost_usd, 8),
    }


def _text(created: float, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> bytes:
    """Return a text line; empty fields are left out."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(created))
    words = [_cut(message), *(f"{name}={value}" for name, value in fields.items() if value not in (None, ""))]
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", " ".join(words)).replace("\n", "\n    ")
    return f"{stamp},{int(created * 1000) % 1000:03d} {level} {logger}: {text}\n".encode(errors="backslashreplace")


def _json(created: float, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> bytes:
    line = {
        "time": datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds"),
        "level": level.lower(),
        "logger": logger,
        "message": _cut(message).encode(errors="backslashreplace").decode(),
        **fields,
    }
    text = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE).decode()
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]} ... ({len(message) - _LONGEST} more)"
