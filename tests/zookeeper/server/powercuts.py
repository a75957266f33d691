"""
One life of a server whose power is cut at a step: a few clients work, the power goes, the server
starts again, and what it has is compared with what it had answered.
"""

from __future__ import annotations

import struct
from random import Random

from kazoo.protocol import serialization as wire

from pylogbroker.testing.powercut import PowerLostError
from tests.zookeeper.server.serverbench import Peer, ServerBench, create

PAIR_COUNT = 6
ROUND_COUNT = 20
EPHEMERAL = 1


class PowerCutTrial:
    """
    Each client sets both nodes of a pair to one number, by one C{multi}, and creates a node for
    each number. So a pair whose nodes differ was done by half, and a number below the last answered
    one was lost.

    @ivar wasCut: whether the step came.
    """

    def __init__(
        self, seed: int, cutAt: int | None, isKill: bool = False, workSeed: int = 1
    ) -> None:
        """
        @param seed: of what survives a power cut.
        @param cutAt: the number of the operation of the file system.
        @param isKill: the process is killed there; what it wrote stays.
        @param workSeed: of what the clients do.
        """
        self.bench = ServerBench(snapshotCount=25)
        self.bench.segmentSizeMax = 4_096
        self.bench.make()
        self.wasCut = False
        self._random = Random(workSeed)
        self._survival = Random(seed)
        self._isKill = isKill
        self._answered: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._ephemerals: dict[str, int] = {}
        self.bench.fileSystem.cutAt = cutAt

    def run(self) -> int:
        """
        @return: how many operations of the file system there were.
        @raise AssertionError: something was lost, or done by half.
        """
        try:
            self.bench.start()
            self._work()
            self.bench.stop()
        except PowerLostError:
            self.wasCut = True
        count = self.bench.fileSystem.operationCount
        if self._isKill:
            self.bench.fileSystem.kill()
        else:
            self.bench.fileSystem.cutPower(
                self._survival if self._survival.random() < 0.7 else None
            )
        self.bench.make()
        self.bench.start()
        self._check()
        self._work()
        self._check()
        return count

    def _work(self) -> None:
        bench = self.bench
        clients = [bench.peer() for _ in range(3)]
        for client in clients:
            client.sendConnect()
        self._settle()
        for client in clients:
            client.connected()
            client.request(create(f"/e-{client.sessionId}", b"", EPHEMERAL))
        self._settle()
        for client in clients:
            assert [each.error for each in client.replies()] == [0]
            self._ephemerals[f"/e-{client.sessionId}"] = client.sessionId
        for number in range(ROUND_COUNT):
            asked: list[tuple[Peer, int, str, int]] = []
            for client in clients:
                pair = f"/p{self._random.randrange(PAIR_COUNT)}"
                value = self._sent.get(pair, 0) + 1
                data = b"%d" % value
                if value == 1:
                    operations = [create(pair, data), create(f"{pair}x", data)]
                else:
                    operations = [
                        wire.SetData(pair, data, -1),
                        wire.SetData(f"{pair}x", data, -1),
                    ]
                operations.append(create(f"{pair}-{value}", bytes(self._random.randrange(200))))
                self._sent[pair] = value
                asked.append((client, client.request(wire.Transaction(operations)), pair, value))
                if self._random.random() < 0.3:
                    bench.settle()
            bench.settle()
            isServing = bench.server.isServing
            for client, xid, pair, value in asked:
                for reply in client.replies():
                    if reply.xid == xid and struct.unpack_from(">i", reply.body)[0] != -1:
                        self._answered[pair] = value
            if not isServing:
                raise PowerLostError("the server has ended")

    def _settle(self) -> None:
        self.bench.settle()
        if not self.bench.server.isServing:
            raise PowerLostError("the server has ended")

    def _check(self) -> None:
        nodes = self.bench.server.tree.nodes
        for pair, value in self._sent.items():
            answered = self._answered.get(pair, 0)
            first, second = nodes.get(pair), nodes.get(f"{pair}x")
            assert (first is None) == (second is None), f"{pair} is there by half"
            found = 0
            if first is not None and second is not None:
                assert first.data == second.data, f"{pair}: {first.data!r}, {second.data!r}"
                found = int(first.data or b"0")
            assert answered <= found <= value, f"{pair}: {answered} was answered, {found} is there"
            for number in range(1, value + 1):
                isThere = f"{pair}-{number}" in nodes
                assert isThere == (number <= found), f"{pair}-{number} with {found}"
            self._sent[pair] = found
            self._answered[pair] = found
        for path, owner in self._ephemerals.items():
            assert path not in nodes or nodes[path].owner == owner
            assert (path in nodes) == (owner in self.bench.server.tree.sessions), path
