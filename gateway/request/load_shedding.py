"""Reject requests that would overload the worker process, before their bodies are read.

Requests that wait for a backend are limited by that backend's queue and their surface's policy. This module protects
the worker: it rejects requests beyond `limits.in_flight`, bodies of more bytes in all than `limits.bodies`, and, with
many in progress, while the event loop is late, which would delay every stream; rejecting is cheap, so the loop catches
up. A loop that is late with few requests in progress is one that the machine gives no time: rejecting would not help,
so they are served, late. As memory fills up, it gives up features in steps: answers are no longer kept for the cache,
then connections are no longer kept alive, and last new requests are rejected, so that streams in progress can finish.

The room for bodies (`BodyRoom`) is shared among those who send them. Counted is what has come, not what a head
announces: a client that sends slowly holds only what it has sent. One sender may hold as many bytes as are left free,
so one alone at most half of the room, two a third each, and a newcomer always finds room. A single body may be larger:
whoever holds nothing else is limited by the room alone. Senders without a key are not told apart, and share all of it.

In a container, the memory in use is the control group's working set divided by its limit, or a parent group's share if
that is higher. Without a limit, it is this process's resident memory divided by that memory plus what the machine has
left; memory used by other processes is no reason to reject requests.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import LimitReached, Overloaded, retry_after

if TYPE_CHECKING:
    from gateway.config.schema import Limits

_EVERY_S: Final = 0.05
_LOOKS: Final = 4
MOST_LAG_S: Final = 0.1
"""Event-loop delay in seconds, in each of the last four measurements, above which new requests are rejected."""

FEW: Final = 32
"""Most requests in progress that are never rejected for the loop's delay: at a few milliseconds of CPU time each, they
are not its cause."""

KEEP_ANSWERS_BELOW: Final = 0.85
KEEP_ALIVE_BELOW: Final = 0.92
TAKE_BELOW: Final = 0.95
"""Shares of the process's permitted memory in use from which on answers are not kept, connections are not kept alive,
and new requests are not taken."""
SMALL_BODY: Final = 64 << 10
"""Bytes up to which a body is not counted: as much is read of every request, and `limits.in_flight` limits those."""
_PART_FOR_BODIES: Final = 16
_MEMORY_EVERY: Final = 20
"""Memory is measured at one in this many measurements of the loop's delay: once a second."""


ANYONE: Final = ""
"""The sender of requests without a key."""


class BodyRoom:
    """Count the bytes that one worker holds of requests. Not thread-safe: use it from one event loop."""

    __slots__ = ("_by_sender", "held", "size")

    def __init__(self, size: int) -> None:
        """Allow `size` bytes in all."""
        self.size = size
        self.held = 0
        self._by_sender: dict[str, int] = {}

    def check(self, sender: str, more: int, own: int = 0) -> None:
        """Raise Overloaded if `more` bytes do not fit, and LimitReached if they are more than the sender may hold.

        `own` is what is held already of the same body or connection.
        """
        free = self.size - self.held - more
        # Closing the connection is the only way not to read the body.
        headers = (*retry_after(1), (b"connection", b"close"))
        if free < 0:
            message = "This gateway holds as many bytes of request bodies as it may (limits.bodies)."
            raise Overloaded(message, headers=headers)
        others = self._by_sender.get(sender, 0) - own
        if sender and others and others + own + more > free:
            message = "This key's requests hold as many bytes as they may while others need room (limits.bodies)."
            raise LimitReached(message, headers=headers)

    def add(self, sender: str, more: int) -> None:
        """Count bytes of a sender, fewer if negative, without a check."""
        self.held += more
        left = self._by_sender.get(sender, 0) + more
        if left:
            self._by_sender[sender] = left
        else:
            self._by_sender.pop(sender, None)


class BodyClaim:
    """The bytes that one body or one connection holds in the room. Release it once."""

    __slots__ = ("_room", "sender", "size")

    def __init__(self, room: BodyRoom, sender: str) -> None:
        self._room = room
        self.sender = sender
        self.size = 0

    def resize(self, size: int) -> None:
        """Hold `size` bytes from now on; to hold fewer never fails. Raises Overloaded and LimitReached."""
        if size > self.size:
            self._room.check(self.sender, size - self.size, self.size)
        if size != self.size:
            self._room.add(self.sender, size - self.size)
            self.size = size

    def release(self) -> None:
        """Give back the bytes that it holds."""
        self.resize(0)


class LoadShedder:
    """Limit the load of one worker. Count every request in `in_hand`, and call `start` on the event loop.

    `most` is the most requests in progress, `room` the most bytes of their bodies. `memory` returns the share of the
    permitted memory in use, 0 to 1.
    """

    def __init__(self, most: int, memory: Callable[[], float] | None = None, room: int = sys.maxsize) -> None:
        self.in_hand = 0
        """Requests in progress: each adds one when it enters, and takes it off even if it is then rejected."""
        self.bodies = BodyRoom(room)
        """Counts bodies of requests in progress that are larger than SMALL_BODY, and what WebSockets hold."""
        self._claims: dict[asyncio.Task[Any], BodyClaim] = {}
        self.draining = False
        self.keeps_alive = True
        """Whether a connection may stay open for another request."""
        self.keeps_answers = True
        """Whether answers may be kept for the cache."""
        self.memory = 0.0
        """The share of the permitted memory in use when last measured, 0 to 1."""
        self._memory = used_share() if memory is None else memory
        self._looks = 0
        self._lags = deque([0.0] * _LOOKS, _LOOKS)
        self.waiting = 0
        """Connections that wait to be accepted, at the last of five measurements a second."""
        self.accept_queue: Callable[[], int] = int
        """Returns how many connections wait to be accepted; set by the server."""
        self._most = most
        self._due = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lag_s(self) -> float:
        """Event-loop delay in seconds: the least of the last four measurements, so one pause does not count."""
        return min(self._lags)

    def start(self) -> None:
        """Begin to measure the loop's delay, every 50 ms (200 ms while no request is in progress), and the memory."""
        self._loop = loop = asyncio.get_running_loop()
        self._due = loop.time() + _EVERY_S
        self._timer = loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def drain(self) -> None:
        """Prepare for the process to stop: new requests are still served, but connections are not kept alive."""
        self.draining = True
        self.keeps_alive = False

    def check(self) -> None:
        """Raise Overloaded if the request that has just entered must be rejected.

        That is with too many in progress, with memory short, or with more than FEW in progress while the loop is late.
        """
        if self.in_hand > self._most:
            raise Overloaded(f"This gateway has {self._most} requests in progress.", headers=retry_after(1))
        if self.memory >= TAKE_BELOW:
            raise Overloaded("This gateway is short of memory.", headers=retry_after(5))
        if self.in_hand > FEW and self.lag_s > MOST_LAG_S:
            raise Overloaded("This gateway is overloaded: its event loop is late.", headers=retry_after(1))

    def hold(self, size: int, sender: str = ANYONE, *, announced: bool = False) -> None:
        """Count `size` bytes as those of the current request's body, until its task ends or `let_go`.

        Raises Overloaded, and LimitReached for more than `sender` may hold. To be called again with more as the body
        grows. Bytes that are only `announced` are checked, not counted.
        """
        task = asyncio.current_task()
        if task is None:
            return
        claim = self._claims.get(task)
        if announced:
            own = 0 if claim is None else claim.size
            self.bodies.check(sender, max(size - own, 0), own)
            return
        if claim is None:
            claim = self._claims[task] = BodyClaim(self.bodies, sender)
            task.add_done_callback(self.let_go)
        if size > claim.size:
            claim.resize(size)

    def let_go(self, task: asyncio.Task[Any]) -> None:
        """Stop counting the body of a task's request: the task has ended, or goes on with another request."""
        if (claim := self._claims.pop(task, None)) is not None:
            claim.release()
            task.remove_done_callback(self.let_go)

    def _look(self) -> None:
        if (loop := self._loop) is None:
            return
        now = loop.time()
        self._lags.append(now - self._due)
        if self._looks % _LOOKS == 0:
            self.waiting = self.accept_queue()
        if self._looks % _MEMORY_EVERY == 0:
            self._look_at_memory()
        # Without requests the loop can be late for nobody: one look in four is left.
        looks = 1 if self.in_hand else _LOOKS - self._looks % _LOOKS
        self._looks += looks
        self._due = now + looks * _EVERY_S
        self._timer = loop.call_at(self._due, self._look)

    def _look_at_memory(self) -> None:
        self.memory = self._memory()
        self.keeps_answers = self.memory < KEEP_ANSWERS_BELOW
        self.keeps_alive = not self.draining and self.memory < KEEP_ALIVE_BELOW


def room_for_bodies(limits: Limits, workers: int = 1, memory: Callable[[], int] | None = None) -> int:
    """Return how many bytes of request bodies one worker may hold: `limits.bodies`, or its part of the memory.

    That is a sixteenth of what the container or the machine has, since a body that is parsed, checked and sent on takes
    several times its size; but one body always fits.
    """
    if limits.bodies is not None:
        return max(limits.bodies, limits.body)
    permitted = permitted_memory() if memory is None else memory()
    return max(limits.body, permitted // _PART_FOR_BODIES // workers)


def permitted_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this process's control group may use, or those of the machine; 0 if it cannot be read."""
    try:
        return min((group.limit for group in _limited(proc, groups)), default=_value(proc / "meminfo", "MemTotal:"))
    except (OSError, ValueError, IndexError):
        return 0


_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class _Limited:
    """A control group with a limit. Inactive file pages do not count as used: the kernel can reclaim them."""

    limit: int
    usage: Path
    stat: Path
    inactive: str

    def share(self) -> float:
        idle = next((int(line.split()[1]) for line in _lines(self.stat) if line.startswith(self.inactive)), 0)
        return max(0, int(self.usage.read_text()) - idle) / self.limit


def used_share(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Callable[[], float]:
    """Return a function that returns the share in use, 0 to 1, or 0 if it cannot be read; a call takes about 100 us.

    `proc` and `groups` are the folders where the kernel exposes processes and control groups.
    """
    limited = list(_limited(proc, groups))
    statm, meminfo = str(proc / "self/statm"), str(proc / "meminfo")

    def share() -> float:
        try:
            return max(group.share() for group in limited) if limited else _of_machine(statm, meminfo)
        except (OSError, ValueError, IndexError):
            return 0.0

    return share


def _of_machine(statm: str, meminfo: str) -> float:
    with open(statm, "rb") as file:  # noqa: PTH123  (once a second: a Path takes five calls to open)
        held = int(file.read().split()[1]) * _PAGE
    return held / (held + _value(meminfo, "MemAvailable:"))


def _limited(proc: Path, groups: Path) -> Iterator[_Limited]:
    try:
        total = _value(proc / "meminfo", "MemTotal:")
        entries = [line.split(":", 2) for line in _lines(proc / "self/cgroup")]
    except (OSError, ValueError, IndexError):
        return
    for _, controllers, path in entries:
        if not controllers:
            base, names = groups, ("memory.max", "memory.current", "inactive_file ")
        elif "memory" in controllers.split(","):
            base, names = groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        else:
            continue
        # In a container the path may be the host's, while the group's own folder is the root of the visible tree.
        folder = base / path.strip("/")
        for group in dict.fromkeys((folder, *folder.parents, base)):
            if group.is_relative_to(base) and (limit := _limit(group / names[0])) is not None and limit < total:
                yield _Limited(limit, group / names[1], group / "memory.stat", names[2])


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max", or none
        return None


def _value(meminfo: Path | str, name: str) -> int:
    """Return the value of a line of /proc/meminfo in bytes."""
    with open(meminfo, "rb") as file:  # noqa: PTH123
        return int(file.read().partition(name.encode())[2].split(maxsplit=1)[0]) << 10


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()
