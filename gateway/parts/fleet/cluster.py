"""Route commands to the servers behind a store's URL: a single one, or the nodes of a Redis Cluster.

The first ping asks which of the two it is; if it is not answered, the first MOVED reply shows a cluster. A key's slot
is the CRC16 of the text in its first braces
(https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/). Each node has its own connections and
breaker, so that a lost node affects only its slots. The slot map is read again after a MOVED, and after a node's
failure, because a replica may have replaced it; a command answered by MOVED or ASK was not executed and is sent once to
the node named there.
"""

from __future__ import annotations

import asyncio
import time
from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any, Final

from cache.store import resp
from cache.store.base import StoreState, StoreUnavailable
from cache.store.redis_node import Moved, Node, is_refusal
from cache.store.redis_nodes import SLOT_MAP, Dialler, NodeCommand, Nodes, sent

SLOTS: Final = 16_384
_SLOTS_S = 0.25
_REFRESH_S = 0.5
_ASKING = resp.command(b"ASKING")


class ClusterNodes(Nodes):
    """The nodes of one store. Each method raises StoreUnavailable. For one event loop; close it after use."""

    def __init__(self, dialler: Dialler) -> None:
        super().__init__(dialler)
        self._known: dict[str, Node] = {self.first.where: self.first}
        self._refreshed_at = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, key: bytes) -> Node:
        """Return the node that owns a key, by the present slot map."""
        return self.first if self.slots is None else self.slots[slot_of(key)]

    def any(self) -> Node:
        """Return a healthy node, for commands that every node answers alike."""
        return next((node for node in self._known.values() if node.state().status == "ok"), self.first)

    async def all(self, parts: Sequence[NodeCommand], limit_s: float) -> list[Any]:
        """Return the replies to several commands, in order; those for one node go in one round trip, in order."""
        if self.slots is None:
            answers = await sent(self.first, parts, limit_s)
        else:
            answers = await self._spread(parts, limit_s)
        for place, answer in enumerate(answers):
            if type(answer) is Moved:
                answers[place] = await self.followed(parts[place], answer, limit_s)
        return answers

    async def blocking(self, part: NodeCommand, limit_s: float) -> Any:
        """Return the reply to a blocking command: on separate connections, and not counted by the breaker."""
        answer = await self.of(part.key).blocking(part.command, limit_s)
        if isinstance(answer, Moved) and not answer.asking:
            answer = await self._moved_to(answer).blocking(part.command, limit_s)
        if isinstance(answer, Moved):
            raise self.first.unavailable("moved")
        return answer

    async def followed(self, part: NodeCommand, moved: Moved, limit_s: float) -> Any:
        """Return the reply of the node to which a command was redirected."""
        node = self._moved_to(moved)
        if moved.asking:
            _, answer = await node.request(_ASKING + part.command, 2, limit_s, (1,) if part.optional else ())
        else:
            (answer,) = await node.request(part.command, 1, limit_s, (0,) if part.optional else ())
        if type(answer) is Moved:
            raise node.unavailable("moved")
        return answer

    async def each(self, commands: bytes, replies: int, limit_s: float) -> list[list[Any]]:
        """Return every node's replies to commands without a key; independent of the breakers."""
        sent = [node.uncounted(commands, replies, limit_s) for node in self._known.values()]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        _raise_first(answers)
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def ping(self) -> None:
        """Check every node's health, and the first time whether it is a cluster."""
        pinged = await asyncio.gather(*(node.ping() for node in self._known.values()), return_exceptions=True)
        _raise_first(pinged)
        if not self._asked:
            await self._refresh(self.first)

    def worst_state(self) -> StoreState:
        """See `Nodes.state`."""
        states = [node.state() for node in self._known.values()]
        worst = next((state for state in states if state.status != "ok"), states[0])
        return StoreState(worst.status, worst.reason, len(states))

    async def aclose(self) -> None:
        """Close all nodes."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        nodes = {self.first, *self._known.values()}
        await asyncio.gather(*(node.aclose() for node in nodes), *self._closing)
        await self._dialler.aclose()

    async def _spread(self, parts: Sequence[NodeCommand], limit_s: float) -> list[Any]:
        places: dict[Node, list[int]] = {}
        for place, part in enumerate(parts):
            places.setdefault(self.of(part.key), []).append(place)
        if len(places) == 1:
            return await sent(next(iter(places)), parts, limit_s)
        parted = [sent(node, [parts[place] for place in some], limit_s) for node, some in places.items()]
        replies = await asyncio.gather(*parted, return_exceptions=True)
        _raise_first(replies)
        answers: list[Any] = [None] * len(parts)
        for some, reply in zip(places.values(), replies, strict=True):
            if not isinstance(reply, BaseException):
                for place, answer in zip(some, reply, strict=True):
                    answers[place] = answer
        return answers

    def _moved_to(self, moved: Moved) -> Node:
        node = self._at(moved.host, moved.port)
        if not moved.asking:
            slots = [self.first] * SLOTS if self.slots is None else list(self.slots)
            slots[moved.slot % SLOTS] = node
            self.slots = slots
            self._doubt()
        return node

    def _at(self, host: str, port: int, beside: str = "") -> Node:
        """Return the node at an address; an empty host means that of the node that replied."""
        host = host or (beside or self.first.where).rpartition(":")[0]
        where = f"{host}:{port}"
        if where not in self._known:
            self._known[where] = self._dialler.at(host, port, self._doubt)
        return self._known[where]

    def _doubt(self) -> None:
        """Start reading the slot map again, unless there is none or it was read less than 0.5 s ago."""
        running = self._refreshing is not None and not self._refreshing.done()
        if self.slots is not None and not running and time.monotonic() - self._refreshed_at > _REFRESH_S:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_somewhere(), name="store-slots")

    async def _refresh_somewhere(self) -> None:
        """Read the slot map from the first node that answers, healthy nodes first."""
        for node in sorted({self.first, *self._known.values()}, key=lambda node: node.state().status != "ok"):
            if await self._refresh(node):
                return

    async def _refresh(self, node: Node) -> bool:
        """Read the slot map from this node; return whether that succeeded."""
        self._refreshed_at = time.monotonic()
        try:
            (reply,) = await node.uncounted(SLOT_MAP, 1, _SLOTS_S, (0,))
        except StoreUnavailable:
            return False
        self._asked = True
        if is_refusal(reply) or not isinstance(reply, list):
            return False  # a single server has no slots
        self._take(reply, node)
        return True

    def _take(self, reply: list[Any], teller: Node) -> None:
        slots = list(self.slots or [self.first] * SLOTS)
        try:
            for first, last, (host, port, *_), *_ in reply:
                node = self._at(_text(host), int(port), teller.where)
                slots[int(first) : int(last) + 1] = [node] * (int(last) + 1 - int(first))
        except (ValueError, TypeError, LookupError):
            return
        if len(slots) != SLOTS or not reply:
            return
        self.slots = slots
        for where, node in list(self._known.items()):
            if node not in slots:
                # It has no slots any more; the node in the URL stays the starting point.
                del self._known[where]
                if node is not self.first:
                    self._retire(node)

    def _retire(self, node: Node) -> None:
        task = asyncio.get_running_loop().create_task(node.aclose(), name="store-retire")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def slot_of(key: bytes) -> int:
    """Return the slot of a key in a cluster."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def _raise_first(replies: Sequence[object]) -> None:
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply


def _text(host: Any) -> str:
    return host.decode() if isinstance(host, bytes) and host != b"?" else ""
