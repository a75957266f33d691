"""
A ZooKeeper server, as a process, that is killed (C{kill -9}) again and again at random times, while
clients work.

Each client counts: one C{multi} sets two nodes to the next number, and creates a node of that
number. So a multi that was carried out by half, and one that was answered and lost, both show.
"""

from __future__ import annotations

import threading
import time
from random import Random
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, SessionExpiredError
from kazoo.retry import KazooRetry

from tests.integration.zookeeperprocess import ZookeeperProcess

SESSION_SECONDS = 30.0
LIFE_SECONDS = (0.1, 1.0)
"""Between which a life's length is drawn, from the first answer on."""

WAIT_SECONDS = 120.0
PIPELINED_COUNT = 20
"""Transactions of a client that are under way at a time."""


class _Counter(threading.Thread):
    """
    A client.

    @ivar answered: the last number that was answered.
    @ivar sent: the last number that was sent.
    @ivar lost: how often an answer was lost.
    """

    def __init__(self, servers: str, number: int) -> None:
        super().__init__(daemon=True)
        self.path = f"/client{number}"
        self.answered = self.sent = 0
        self.lost = 0
        self.problem: BaseException | None = None
        self.client = KazooClient(
            servers,
            timeout=SESSION_SECONDS,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1),
            command_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1),
        )
        self._isOver = threading.Event()

    def begin(self) -> None:
        self.client.start(WAIT_SECONDS)
        self.client.create(self.path, b"0")
        self.client.create(f"{self.path}/second", b"0")
        self.client.create(f"{self.path}/here", b"", ephemeral=True)
        self.sessionId = self.client.client_id[0]
        self.start()

    def run(self) -> None:
        try:
            while not self._isOver.is_set():
                self._pipeline()
        except BaseException as error:
            self.problem = error

    def _pipeline(self) -> None:
        requests = [self._send(self.sent + 1) for _ in range(PIPELINED_COUNT)]
        isLost = False
        for number, request in requests:
            try:
                results = request.get(timeout=WAIT_SECONDS)
            except (ConnectionLoss, SessionExpiredError):
                isLost = True
                continue
            if any(isinstance(each, KazooException) for each in results):
                # Behind a lost one, whose outcome is not known, the numbers may not fit.
                assert isLost, (number, results)
                continue
            self.answered = max(self.answered, number)
        if isLost:
            self.lost += 1
            value = int(self.client.retry(self.client.get, self.path)[0])
            assert self.answered <= value <= self.sent, (self.answered, value, self.sent)
            self.sent = self.answered = value

    def _send(self, number: int) -> tuple[int, Any]:
        data = b"%d" % number
        multi = self.client.transaction()
        multi.check(self.path, number - 1)
        multi.set_data(self.path, data)
        multi.set_data(f"{self.path}/second", data)
        multi.create(f"{self.path}/n{number:07d}", data)
        self.sent = number
        return number, multi.commit_async()

    def finish(self) -> None:
        """Blocks until it has stopped working."""
        self._isOver.set()
        self.join(WAIT_SECONDS)
        assert not self.is_alive(), f"{self.path} does not come to an end"
        if self.problem is not None:
            raise self.problem

    def check(self) -> None:
        """@raise AssertionError: something was lost, or done by half."""
        first, stat = self.client.get(self.path)
        second, secondStat = self.client.get(f"{self.path}/second")
        names = set(self.client.get_children(self.path)) - {"second", "here"}
        value = int(first)
        assert self.answered <= value <= self.sent, (self.answered, value, self.sent)
        assert first == second and stat.version == secondStat.version == value, (stat, secondStat)
        assert names == {f"n{each:07d}" for each in range(1, value + 1)}, f"{len(names)}, {value}"
        here = self.client.exists(f"{self.path}/here")
        assert here is not None and here.ephemeralOwner == self.sessionId, here
        assert self.client.client_id[0] == self.sessionId


class ZookeeperKillTrial:
    """
    @ivar killCount: so far.
    @ivar answeredCount: transactions that were answered, of all clients.
    @ivar lostCount: kills that cost a client an answer.
    """

    def __init__(self, directory: str, seed: int, clientCount: int = 4) -> None:
        """@param directory: of the server's data."""
        self.killCount = self.answeredCount = self.lostCount = 0
        self._random = Random(seed)
        self._server = ZookeeperProcess(directory)
        self._clientCount = clientCount

    def run(self, killCount: int) -> None:
        """
        Blocks.

        @raise AssertionError: a promise was broken.
        """
        server = self._server.start()
        clients = [_Counter(server.servers, number) for number in range(self._clientCount)]
        try:
            for each in clients:
                each.begin()
            for _ in range(killCount):
                before = [each.answered for each in clients]
                self._await(lambda before=before: [each.answered for each in clients] > before)
                time.sleep(self._random.uniform(*LIFE_SECONDS))
                server.kill()
                self.killCount += 1
                server.start()
            for each in clients:
                each.finish()
            for each in clients:
                each.check()
        finally:
            for each in clients:
                self.answeredCount += each.answered
                self.lostCount += each.lost
                each.client.stop()
                each.client.close()
            server.stop()

    @staticmethod
    def _await(isDone: Any) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not isDone():
            assert time.monotonic() < end, "no client is answered"
            time.sleep(0.005)
