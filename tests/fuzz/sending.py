"""
Sends mutations, so that each is known to have been carried out, or found to be none, whatever the
ones before it did.

Behind each mutation goes a I{probe}, a request whose answer is known and no other's. Many such
pairs are sent down one connection. The answers of the probes say how far the other side came before
a mutation made it close the connection, or take what followed for a part of itself; what came
behind that one is sent again on the next connection.

The end of a connection: where half-closing it leaves the answers intact, that; it makes a request
that waits for more of itself give up. Elsewhere it is closed when the last probe was answered, or
when nothing has come for a while in which the watcher got its answers several times over: then the
other side waits for more of a mutation.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from tests.fuzz.asking import RECEIVE_SIZE
from tests.fuzz.figures import Figures
from tests.fuzz.livebroker import ANSWER_SECONDS_MAX

QUIET_SECONDS = 0.1
QUIET_WATCH_COUNT = 4
LOOK_SECONDS = 0.02
_READ_COUNT_MAX = 16
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class IAnswers(Protocol):
    """
    Reads what comes down one connection.

    @ivar count: answers so far, if they are counted.
    @ivar reached: the index of the last probe that was answered; -1: none.
    """

    count: int
    reached: int

    def feed(self, data: bytes) -> None:
        """Raises L{AssertionError} for what must not come."""
        ...


class ITarget(Protocol):
    """
    Where to send.

    @ivar probes: one for each place of a batch; empty: each mutation has a connection of its own.
    @ivar hasHalfClose: whether the answers survive half-closing.
    @ivar laneCount: connections at a time.
    """

    probes: list[bytes]
    hasHalfClose: bool
    laneCount: int

    def open(self) -> socket.socket:
        """A connection."""
        ...

    def newAnswers(self) -> IAnswers:
        """For one connection."""
        ...


class BatchAccumulator:
    """
    One connection after the other, with a batch of mutations each.

    @ivar batch: what is under way, the first not known to have been tried yet.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.batch: list[bytes] = []
        self._open()

    def _open(self) -> None:
        sender, target = self._sender, self._sender.target
        while (
            len(self.batch) < max(len(target.probes), 1)
            and (mutation := next(sender.mutations, None)) is not None
        ):
            self.batch.append(mutation)
        if not self.batch:
            return
        probes = target.probes or [b""]
        self._out = memoryview(
            b"".join(mutation + probe for mutation, probe in zip(self.batch, probes, strict=False))
        )
        self._answers = target.newAnswers()
        self._socket = target.open()
        self._socket.setblocking(False)
        self._heard()
        sender.figures.connectionCount += 1
        sender.selector.register(self._socket, selectors.EVENT_READ, self)
        sender.openCount += 1
        self._write()

    def _heard(self) -> None:
        self._lastNews = time.monotonic()
        self._watchCountAtNews = self._sender.figures.watchCount

    def ready(self) -> None:
        """The socket can be read or written."""
        self._heard()
        if self._out:
            self._write()
        self._read()

    def _write(self) -> None:
        wanted = selectors.EVENT_READ
        try:
            while self._out:
                self._out = self._out[self._socket.send(self._out) :]
            if self._sender.target.hasHalfClose:
                self._socket.shutdown(socket.SHUT_WR)
        except (BlockingIOError, ssl.SSLWantWriteError):
            wanted |= selectors.EVENT_WRITE
        except ssl.SSLWantReadError:
            pass
        except OSError:  # closed by the other side: what it has answered may still be there to read
            self._out = memoryview(b"")
        self._sender.selector.modify(self._socket, wanted, self)

    def _read(self) -> None:
        figures = self._sender.figures
        for _ in range(_READ_COUNT_MAX):
            try:
                data = self._socket.recv(RECEIVE_SIZE)
            except _WOULD_BLOCK:
                break
            except OSError:
                data = b""
            if not data:
                self._over()
                return
            figures.answerSize += len(data)
            self._answers.feed(data)
        if self._answers.reached + 1 == len(self.batch) and not self._sender.target.hasHalfClose:
            self._over()

    def _over(self) -> None:
        """
        The connection has done its work: what was answered was tried, and so was the one behind it,
        which ended it, or swallowed what followed.
        """
        figures = self._sender.figures
        tried = min(self._answers.reached + 2, len(self.batch))
        if self._answers.reached + 1 < len(self.batch):
            figures.endedCount += 1
        figures.answerCount += self._answers.count
        figures.triedCount += tried
        del self.batch[:tried]
        self._sender.selector.unregister(self._socket)
        self._socket.close()
        self._sender.openCount -= 1
        self._open()

    def check(self, now: float) -> None:
        """
        Look whether the other side waits for more. Nothing for too long is a fault; but not if the
        watcher got nothing, either: then it is slow, or has stopped, of which the watcher tells.
        """
        if not self.batch:
            return
        quiet = now - self._lastNews
        figures = self._sender.figures
        hasTurned = figures.watchCount - self._watchCountAtNews >= QUIET_WATCH_COUNT
        if (
            not self._sender.target.hasHalfClose
            and not self._out
            and quiet > QUIET_SECONDS
            and hasTurned
        ):
            figures.quietCount += 1
            self._over()
        elif quiet > ANSWER_SECONDS_MAX and (hasTurned or figures.faults):
            raise AssertionError(
                f"no answer, and no end, for {ANSWER_SECONDS_MAX} s to"
                f" {[mutation.hex() for mutation in self.batch]}"
            )


class Sender:
    """Sends all mutations, over some connections at a time."""

    def __init__(self, target: ITarget, mutations: Iterator[bytes], figures: Figures) -> None:
        self.target = target
        self.mutations = mutations
        self.figures = figures
        self.selector = selectors.DefaultSelector()
        self.openCount = 0

    def run(self, progress: Callable[[], bool]) -> None:
        """
        @param progress: called about once a second; says whether to go on.
        @raise AssertionError: the other side does not do what it must.
        """
        lanes = [BatchAccumulator(self) for _ in range(self.target.laneCount)]
        look = report = time.monotonic()
        with self.selector:
            while self.openCount:
                for key, _events in self.selector.select(LOOK_SECONDS):
                    key.data.ready()
                now = time.monotonic()
                if now > look:
                    look = now + LOOK_SECONDS
                    for lane in lanes:
                        lane.check(now)
                if now > report:
                    report = now + 1
                    if not progress():
                        self.mutations = iter(())
