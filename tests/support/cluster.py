"""A real Redis Cluster for tests: three nodes on loopback, without replicas, whose slots can be moved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import redis

from gateway.parts.fleet.cluster import slot_of
from tests.support.ports import free_port
from tests.support.store import LocalStore
from tests.support.wait import until

SLOTS = 16_384
BOUNDS = ((0, 5460), (5461, 10_922), (10_923, SLOTS - 1))
_PATIENCE_S = 60


class Cluster:
    """The nodes, as servers and as clients that follow nothing."""

    def __init__(self, servers: Sequence[LocalStore], clients: Sequence[redis.Redis]) -> None:
        self.servers = servers
        self.clients = clients

    @property
    def urls(self) -> list[str]:
        """Each node's."""
        return [server.url for server in self.servers]

    def owner(self, key: str) -> int:
        """Which node has a key, at first."""
        slot = slot_of(key.encode())
        return next(place for place, (first, last) in enumerate(BOUNDS) if first <= slot <= last)

    def begin_to_move(self, key: str, to: int) -> None:
        """From now on what its slot does not have yet is asked for at another node."""
        slot, here = slot_of(key.encode()), self.owner(key)
        self.clients[to].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(here))
        self.clients[here].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(to))

    def move(self, key: str, to: int) -> None:
        """Gives the key's slot, with all that is in it, to another node."""
        slot, here = slot_of(key.encode()), self.owner(key)
        port = self.servers[to].port
        while keys := self.clients[here].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            self.clients[here].execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)
        for place in (to, here, *range(len(self.clients))):
            self.clients[place].execute_command("CLUSTER", "SETSLOT", slot, "NODE", self._id(to))

    def take_over(self, key: str, by: int) -> None:
        """Has the living nodes agree that a lost one's slot is another's, as a failover would."""
        slot, lost = slot_of(key.encode()), self.owner(key)
        for place in range(len(self.clients)):
            if place != lost:
                self.clients[place].execute_command("CLUSTER", "SETSLOT", slot, "NODE", self._id(by))

    def _id(self, place: int) -> str:
        found = self.clients[place].execute_command("CLUSTER", "MYID")
        return found.decode() if isinstance(found, bytes) else str(found)


@contextlib.contextmanager
def cluster_of(command: Sequence[str] | None = None) -> Iterator[Cluster]:
    """A started cluster that is gone afterwards; `command` starts another server than the embedded Valkey."""
    with contextlib.ExitStack() as stack:
        servers, clients = [], []
        buses = [free_port() for _ in BOUNDS]
        for (first, last), bus in zip(BOUNDS, buses, strict=True):
            options = f"--cluster-enabled yes --cluster-port {bus} --cluster-node-timeout 5000"
            options += " --cluster-require-full-coverage no"
            server = LocalStore(options, command=command)
            stack.callback(server.close)
            server.start()
            client = redis.Redis(port=server.port)
            stack.callback(client.close)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            servers.append(server)
            clients.append(client)
        for server, bus in zip(servers[1:], buses[1:], strict=True):
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        for client in clients:
            until(lambda client=client: _knows_all(client), _PATIENCE_S, "the cluster")
        yield Cluster(servers, clients)


def _knows_all(client: redis.Redis) -> bool:
    told = client.execute_command("CLUSTER", "INFO")
    said = told if isinstance(told, dict) else dict(line.split(":") for line in told.decode().split())
    return (said["cluster_state"], said["cluster_slots_assigned"], said["cluster_known_nodes"]) == ("ok", "16384", "3")
