"""
The brokers of a L{ClusterBench} behind sockets, for commands that block: a thread of its own takes
their requests, one at a time.
"""

from __future__ import annotations

import selectors
import socket
import threading
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.protocol import ConnectionState
from pylogbroker.cluster.metadataimage import MetadataImage, Record, RegisterBrokerRecord
from pylogbroker.config.listenersettings import Listener
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.requests import decodeRequest
from pylogbroker.protocol.kafka.responses import encodeResponse
from pylogbroker.replication.controller import AlterPartition, InSyncReplica, alterPartition
from tests.broker.kafka.clusterbench import ClusterBench
from tests.broker.kafka.groupcase import TRANSPORT


class BenchServer:
    """
    Sockets for a bench's brokers.

    @ivar bench: to be used while no command runs.
    @ivar isCatchingUp: whether followers are in sync as soon as reassignments are asked for.
    """

    def __init__(self, bench: ClusterBench) -> None:
        self.bench = bench
        self.isCatchingUp = True
        self._selector = selectors.DefaultSelector()
        self._listening: dict[int, socket.socket] = {}
        for brokerId in bench.brokers:
            made = self._listening[brokerId] = socket.create_server(("127.0.0.1", 0))
            self._selector.register(made, selectors.EVENT_READ, (brokerId, None))
        for brokerId in bench.brokers:
            self._register(brokerId)
        self._ending, ended = socket.socketpair()
        self._selector.register(ended, selectors.EVENT_READ, (-1, None))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def servers(self) -> str:
        """For C{--bootstrap-server}: the first broker that runs."""
        return f"127.0.0.1:{self._port(min(self.bench.brokers))}"

    def _port(self, brokerId: int) -> int:
        port: int = self._listening[brokerId].getsockname()[1]
        return port

    def _register(self, brokerId: int, rack: str | None = None) -> None:
        made = self.bench.registration(brokerId)
        endpoint = ["PLAINTEXT", "127.0.0.1", self._port(brokerId), "PLAINTEXT"]
        self.bench.change(RegisterBrokerRecord(brokerId, made.epoch, [endpoint], rack))

    def setRacks(self, racks: dict[int, str]) -> None:
        for brokerId, rack in racks.items():
            self._register(brokerId, rack)

    def close(self) -> None:
        """End the thread, and close all."""
        self._ending.close()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _events in self._selector.select():
                brokerId, received = key.data
                connection: Any = key.fileobj
                if brokerId < 0:
                    return
                if received is None:
                    made, _ = connection.accept()
                    self._selector.register(made, selectors.EVENT_READ, (brokerId, bytearray()))
                elif not self._receive(connection, brokerId, received):
                    self._selector.unregister(connection)
                    connection.close()

    def _receive(self, connection: socket.socket, brokerId: int, received: bytearray) -> bool:
        """Answer what has come; C{False}: the client is gone."""
        try:
            data = connection.recv(1 << 16)
            received += data
            while len(received) >= 4 + (size := int.from_bytes(received[:4], "big")):
                frame = bytes(received[4 : 4 + size])
                del received[: 4 + size]
                connection.sendall(self._answer(brokerId, frame))
        except ConnectionError:
            return False
        return bool(data)

    def _answer(self, brokerId: int, frame: bytes) -> bytes:
        """The bytes of a response."""
        handlers = self.bench.brokers[brokerId].kafka._handlers
        header, body = decodeRequest(frame, {*handlers, ApiKey.API_VERSIONS})
        if header.apiKey is ApiKey.API_VERSIONS:
            cls = messages.ApiVersionsResponse
            keys = [
                cls.ApiVersion(
                    apiKey=key, minVersion=key.advertisedVersion, maxVersion=key.lastVersion
                )
                for key in (*handlers, ApiKey.API_VERSIONS)
            ]
            return encodeResponse(header, cls(apiKeys=keys))
        state = ConnectionState(TRANSPORT, Listener(name="PLAINTEXT"))
        answer = handlers[header.apiKey](header, body, state)
        if isinstance(answer, Deferred):
            answer = self.bench.do(answer)
        if self.isCatchingUp and header.apiKey is ApiKey.LIST_PARTITION_REASSIGNMENTS:
            self.catchUp()
        return encodeResponse(header, answer)

    def catchUp(self) -> None:
        """The followers of one partition that is being reassigned have caught up."""

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            for topic in image.topics.values():
                for index, part in enumerate(topic.partitions):
                    if part.adding:
                        wanted = AlterPartition(
                            topic.topicId,
                            index,
                            part.leader,
                            image.brokers[part.leader].epoch,
                            part.leaderEpoch,
                            part.partitionEpoch,
                            tuple(
                                InSyncReplica(each, image.brokers[each].epoch)
                                for each in part.replicas
                            ),
                        )
                        return alterPartition(image, wanted)[1], None
            return [], None

        self.bench.do(self.bench.metadata.change(decide))
