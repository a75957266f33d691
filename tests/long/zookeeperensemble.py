"""Apache's ZooKeeper with three members, each on a node of a network of namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.integration.apachezookeeper import (
    HEAP_MIB,
    MAIN_CLASS,
    SESSION_TIMEOUT_MS_MAX,
    findJars,
    findJava,
)
from tests.long.namespaces import Network

TICK_MS = 500
PORT, QUORUM_PORT, ELECTION_PORT = 2181, 2888, 3888
ANSWER_SECONDS = 1.0


class ZookeeperEnsemble:
    """
    The processes.

    @ivar servers: the C{zk.connect} of its clients.
    """

    def __init__(self, network: Network, names: Sequence[str], folder: Path) -> None:
        """
        @param names: of the members' nodes.
        @param folder: of their data; each has its own in it.
        """
        self.names = names
        self.servers = ",".join(f"{network.address(each)}:{PORT}" for each in names)
        self._network = network
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def _configuration(self, name: str) -> Path:
        directory = self._folder / name
        directory.mkdir(exist_ok=True)
        number = self.names.index(name) + 1
        (directory / "myid").write_text(f"{number}\n", encoding="ascii")
        members = "".join(
            f"server.{at}={self._network.address(each)}:{QUORUM_PORT}:{ELECTION_PORT}\n"
            for at, each in enumerate(self.names, 1)
        )
        path = directory / "zoo.cfg"
        path.write_text(
            f"tickTime={TICK_MS}\ninitLimit=10\nsyncLimit=4\ndataDir={directory}\n"
            f"clientPort={PORT}\nclientPortAddress={self._network.address(name)}\n"
            f"maxSessionTimeout={SESSION_TIMEOUT_MS_MAX}\nmaxClientCnxns=0\n"
            f"admin.enableServer=false\n4lw.commands.whitelist=srvr\n{members}",
            encoding="ascii",
        )
        return path

    def start(self, name: str) -> None:
        """Start a member with the data that it had; it serves later."""
        command = [
            *self._network.command(name),
            findJava(os.environ),
            f"-Xmx{HEAP_MIB}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dzookeeper.cnxTimeout=1000",
            "-cp",
            findJars(),
            MAIN_CLASS,
            str(self._configuration(name)),
        ]
        with (self._folder / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def mode(self, name: str) -> str:
        """C{leader} or C{follower}; empty: it does not serve."""
        answer = b""
        with suppress(OSError):
            address = self._network.address(name), PORT
            with socket.create_connection(address, ANSWER_SECONDS) as connection:
                connection.sendall(b"srvr")
                while data := connection.recv(4096):
                    answer += data
        _, _, rest = answer.partition(b"Mode: ")
        return rest.split(b"\n")[0].decode()

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a member."""
        self._processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        """C{kill -9}."""
        self._processes[name].kill()
        self._processes[name].wait()

    def clear(self) -> None:
        """Kill all of them."""
        for name in self._processes:
            self.kill(name)
