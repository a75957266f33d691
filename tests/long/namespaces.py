"""
A network of Linux namespaces for L{tests.long.namespacechaos}: each node has its own addresses, and
packets from one node to another can be lost, in either direction.

L{isolate} starts the program again in a network, a mount and a process namespace of its own. So
nothing that is made here is seen outside; runs do not meet; and all of it goes with the program,
processes too, whatever ends it.

A cut is a permanent neighbour with a hardware address that no node has: packets are sent, and lost
without a word, as by a broken switch. (A blackhole route would tell the sender, and so does an
interface that is down, after some seconds. The kernel may have no netfilter and no netem.)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

_INSIDE = "PYLOGBROKER_NAMESPACES"
_SWITCH = "switch"
_BRIDGE = "bridge"
_DEVICE = "eth0"
_NOWHERE = "02:00:00:00:00:ff"
_RUN = Path("/run/netns")


def isolate(module: str) -> None:
    """
    Return in new namespaces; the program begins anew for it.

    @param module: of the program.
    @raise OSError: C{unshare} is missing.
    """
    if os.environ.get(_INSIDE) == "yes":
        _RUN.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", str(_RUN))
        run("ip", "link", "set", "lo", "up")
        return
    os.environ[_INSIDE] = "yes"
    options = ["--net", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc"]
    program = [sys.executable, "-m", module, *sys.argv[1:]]
    os.execvp("unshare", ["unshare", *options, "--kill-child", *program])


def run(*command: str, given: str | None = None) -> None:
    """@raise CalledProcessError: the command has failed."""
    subprocess.run(command, input=given, text=True, check=True, capture_output=True)


class Network:
    """
    Nodes, each in a namespace of its own, but for the first: that is this process.

    @ivar nodes: their names.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = nodes
        self._numbers = {name: number for number, name in enumerate(nodes, 1)}
        self._lost: set[tuple[str, str]] = set()

    def address(self, name: str) -> str:
        """The IPv4 address of a node."""
        return f"10.77.0.{self._numbers[name]}"

    def command(self, name: str) -> list[str]:
        """What runs a program on a node, when the program and its arguments are put behind it."""
        if name == self.nodes[0]:
            return []
        return ["nsenter", f"--net={_RUN / name}", "--"]

    def start(self) -> None:
        """@raise CalledProcessError: this kernel, or this user, cannot have it."""
        run("ip", "netns", "add", _SWITCH)
        run("ip", "-n", _SWITCH, "link", "add", _BRIDGE, "type", "bridge")
        run("ip", "-n", _SWITCH, "link", "set", _BRIDGE, "up")
        for name in self.nodes:
            isOwn = name == self.nodes[0]
            inside = [] if isOwn else ["-n", name]
            if not isOwn:
                run("ip", "netns", "add", name)
            made = ["link", "add", _DEVICE, "address", self._hardwareAddress(name), "type", "veth"]
            run("ip", *inside, *made, "peer", "name", name, "netns", _SWITCH)
            run("ip", "-n", _SWITCH, "link", "set", name, "master", _BRIDGE, "up")
            run("ip", *inside, "link", "set", "lo", "up")
            run("ip", *inside, "address", "add", f"{self.address(name)}/24", "dev", _DEVICE)
            run("ip", *inside, "link", "set", _DEVICE, "up")
            others = [each for each in self.nodes if each != name]
            self._replace(name, [(each, self._hardwareAddress(each)) for each in others])

    def stop(self) -> None:
        """Remove the network; its processes must have ended."""
        run("ip", "link", "delete", _DEVICE)
        for name in (*self.nodes[1:], _SWITCH):
            run("ip", "netns", "delete", name)

    def _hardwareAddress(self, name: str) -> str:
        return f"02:00:00:00:00:{self._numbers[name]:02x}"

    def _replace(self, name: str, neighbours: Iterable[tuple[str, str]]) -> None:
        inside = [] if name == self.nodes[0] else ["-n", name]
        lines = [
            f"neighbour replace {self.address(other)} lladdr {hardwareAddress} dev {_DEVICE}"
            " nud permanent\n"
            for other, hardwareAddress in neighbours
        ]
        run("ip", *inside, "-batch", "-", given="".join(lines))

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Lose what is sent from the first node of each pair to the second."""
        self._set(self._lost | {*pairs})

    def heal(self) -> None:
        """Lose nothing."""
        self._set(set())

    def _set(self, lost: set[tuple[str, str]]) -> None:
        for name in self.nodes:
            changed = [
                (other, _NOWHERE if (name, other) in lost else self._hardwareAddress(other))
                for other in self.nodes
                if ((name, other) in lost) != ((name, other) in self._lost)
            ]
            if changed:
                self._replace(name, changed)
        self._lost = lost


class Disk:
    """A small file system of its own, which can be full."""

    def __init__(self, path: Path, sizeMax: int) -> None:
        """@param sizeMax: bytes."""
        self.path = path
        self._filler = path / "filler"
        path.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={sizeMax}", "tmpfs", str(path))

    def fill(self, leftSize: int) -> None:
        """
        Take all space but this.

        @param leftSize: bytes; rounded down to pages.
        """
        with self._filler.open("wb") as file:
            while (size := self._freeSize() - leftSize) > 0:
                with suppress(OSError):  # others have taken some meanwhile
                    os.posix_fallocate(file.fileno(), os.stat(self._filler).st_size, size)

    def _freeSize(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def free(self) -> None:
        """Give it back."""
        self._filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Its files are lost."""
        run("umount", str(self.path))
