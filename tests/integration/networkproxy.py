"""
The network between processes on the loopback interface: a TCP proxy in front of each server, and
cuts. What is cut loses nothing: bytes wait in the proxy, as they wait in TCP until packets get
through again, and then go on. While a way is cut in either direction, no new connection is made
there, since a handshake needs both.

All proxies run in a thread of their own, since who uses them waits for other things. Who has
connected is found in C{/proc}: clients and brokers come from the same address.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

PIECE_SIZE = 1 << 16
HOST = "127.0.0.1"
_LOCAL, _REMOTE, _INODE = 1, 2, 9
"""Columns of C{/proc/net/tcp}."""

T = TypeVar("T")


def _ownerOf(pids: Mapping[str, int], port: int, serverPort: int) -> str | None:
    """Whose process has the end at C{port} of a connection to C{serverPort}."""
    here, there = f"0100007F:{port:04X}", f"0100007F:{serverPort:04X}"
    with open("/proc/net/tcp", encoding="ascii") as file:
        for line in file:
            words = line.split()
            if words[_LOCAL] == here and words[_REMOTE] == there:
                break
        else:
            return None
    wanted = f"socket:[{words[_INODE]}]"
    for place, pid in pids.items():
        with suppress(OSError):
            folder = f"/proc/{pid}/fd"
            for name in os.listdir(folder):
                with suppress(OSError):
                    if os.readlink(f"{folder}/{name}") == wanted:
                        return place
    return None


class NetworkProxy:
    """
    Between clients, servers, and the brokers, which are both.

    A place in the network is a string: the name of a server, or C{""} for all clients.
    """

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._blocked: set[str] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def serve(self, place: str, port: int, serverPort: int, client: str | None = None) -> None:
        """
        Let clients reach the server of a place.

        @param port: where they connect to.
        @param serverPort: where it listens.
        @param client: the place of all of them; L{None}: it is found out.
        """
        self._do(self._listen(partial(self._serve, place, port, serverPort, client), port))

    async def _listen(self, serve: Callable[..., Any], port: int) -> None:
        self._servers.append(await asyncio.start_server(serve, HOST, port))

    def settle(self, place: str, pid: int) -> None:
        """The process at a place, whose own connections are cut with it."""
        self._pids[place] = pid

    def cut(self, place: str, direction: str) -> None:
        """
        Cut a place off from all others, also from clients.

        @param direction: C{"in"}: it gets nothing; C{"out"}: nothing of it gets through; C{"both"}.
        """
        ways = ("in", "out") if direction == "both" else (direction,)
        self._do(self._change(self._blocked | {f"{place} {way}" for way in ways}))

    def heal(self) -> None:
        """Nothing is cut any more."""
        self._do(self._change(set()))

    async def _change(self, blocked: set[str]) -> None:
        self._blocked = blocked
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """Nothing gets through any more."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for each in self._pumps:
            each.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    # -- in the thread

    async def _open(self, *ways: str) -> None:
        while self._blocked.intersection(ways):
            await self._changed.wait()

    async def _serve(
        self,
        place: str,
        port: int,
        serverPort: int,
        client: str | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if client is None:
            clientPort = writer.get_extra_info("peername")[1]
            found = await asyncio.to_thread(_ownerOf, dict(self._pids), clientPort, port)
            client = found or ""
        there = f"{client} out", f"{place} in"
        back = f"{place} out", f"{client} in"
        pump = asyncio.ensure_future(self._connect(serverPort, reader, writer, there, back))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)

    async def _connect(
        self,
        serverPort: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: tuple[str, str],
        back: tuple[str, str],
    ) -> None:
        writers = [writer]
        try:
            await self._open(*there, *back)
            serverReader, serverWriter = await asyncio.open_connection(HOST, serverPort)
            writers.append(serverWriter)
            pumps = [
                asyncio.ensure_future(self._pump(reader, serverWriter, there)),
                asyncio.ensure_future(self._pump(serverReader, writer, back)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in pumps:
                    each.cancel()
        except OSError:
            pass  # the server is away, and its client finds out below
        finally:
            for made in writers:
                made.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ways: tuple[str, str]
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE_SIZE):
                await self._open(*ways)
                writer.write(data)
                await writer.drain()
            await self._open(*ways)
