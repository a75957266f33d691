"""
Several brokers of a cluster, without connections between them: each has its own files, and all have
one image of the metadata, whose changes each of them is told of.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogbroker.broker.kafka.protocol import ConnectionState
from pylogbroker.broker.metadata.journal import MetadataJournal
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.metadataimage import (
    ClusterRecord,
    FenceBrokerRecord,
    MetadataImage,
    PartitionImage,
    Record,
    RegisterBrokerRecord,
)
from pylogbroker.config.listenersettings import Listener
from pylogbroker.interfaces import Slice
from pylogbroker.net.sendfile import releaseSlices
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.requests import decodeRequest
from pylogbroker.protocol.kafka.responses import encodeResponse
from pylogbroker.storage.metadatastore import MetadataStore
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.testing.worker import ManualWorker
from tests.broker.kafka.groupcase import TRANSPORT
from tests.broker.kafka.requestbench import RequestBench, resultOf

UNREPLICATED = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
}
"""Of coordinators' topics, since the brokers do not fetch from one another."""


class ClusterBench:
    """
    Brokers 1, 2 and 3, and what they share.

    @ivar metadata: of the cluster.
    @ivar brokers: those that run, by id.
    """

    def __init__(self, properties: Mapping[str, str] = {}, seed: int = 3) -> None:
        files = PowerCutFileSystem(lambda: 0)
        files.makeDirectories("/metadata")
        self.worker = ManualWorker()
        journal = MetadataJournal(MetadataStore(files, "/metadata"), self.worker)
        self.metadata = MetadataManager(journal, Random(seed).randbytes)
        brokerIds = (1, 2, 3)
        self._epoch = 0
        journal.open(
            self.metadata,
            lambda: [ClusterRecord("C" * 22), *(self.registration(each) for each in brokerIds)],
        )
        self.properties = {**UNREPLICATED, **properties}
        self.brokers: dict[int, RequestBench] = {}
        for brokerId in brokerIds:
            self.run(brokerId)
        self.settle()

    def registration(self, brokerId: int) -> RegisterBrokerRecord:
        """The record of a broker that starts, with two listeners."""
        self._epoch += 1
        endpoints: list[list[Any]] = [
            ["PLAINTEXT", f"b{brokerId}", 9092, "PLAINTEXT"],
            ["OUTSIDE", f"o{brokerId}", 9093, "PLAINTEXT"],
        ]
        return RegisterBrokerRecord(brokerId, self._epoch, endpoints, None)

    def run(self, brokerId: int, files: PowerCutFileSystem | None = None) -> RequestBench:
        """Start a broker, perhaps on what an earlier run left."""
        bench = RequestBench(files, self.metadata, brokerid=str(brokerId), **self.properties)
        self.brokers[brokerId] = bench
        return bench

    def kill(self, brokerId: int) -> PowerCutFileSystem:
        """Stop a broker at once; returns its files."""
        bench = self.brokers.pop(brokerId)
        listeners = self.metadata._listeners
        for each in list(listeners):
            owner = getattr(each, "__self__", None)
            if owner in (bench.kafka, bench.topics, bench.kafka.groups, bench.kafka.transactions):
                listeners.remove(each)
        bench.kafka.endWaits()
        bench.files.kill()
        return bench.files

    def settle(self) -> None:
        """Do whatever there is to do now, everywhere."""
        isBusy = True
        while isBusy:
            isBusy = bool(self.worker.performAll())
            for bench in self.brokers.values():
                bench.clock.advance(0)
                isBusy |= bool(bench.worker.performAll() or bench.readWorker.performAll())

    def do(self, waiting: Any) -> Any:
        """The result of a Deferred or a coroutine that needs the workers."""
        if not isinstance(waiting, Deferred):
            waiting = Deferred.fromCoroutine(waiting)
        return resultOf(waiting, self.settle)

    def change(self, *records: Record) -> None:
        """A change by none of these brokers."""
        self.do(self.metadata.change(lambda image: (list(records), None)))

    def fence(self, brokerId: int) -> None:
        """As the controller does when a broker is gone: what it led has no leader."""

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            records: list[Record] = [FenceBrokerRecord(brokerId, image.brokers[brokerId].epoch)]
            for topic in image.topics.values():
                for index, part in enumerate(topic.partitions):
                    if part.leader == brokerId:
                        made = _next(part, leader=-1)
                        records.append(made.record(topic.topicId, index))
            return records, None

        self.do(self.metadata.change(decide))

    def unfence(self, brokerId: int) -> None:
        """A broker is there again, and leads what it alone has."""

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            records: list[Record] = [self.registration(brokerId)]
            for topic in image.topics.values():
                for index, part in enumerate(topic.partitions):
                    if part.leader == -1 and brokerId in part.inSync:
                        made = _next(part, leader=brokerId)
                        records.append(made.record(topic.topicId, index))
            return records, None

        self.do(self.metadata.change(decide))

    def ask(
        self, brokerId: int, key: ApiKey, version: int, body: Any, listener: str = "PLAINTEXT"
    ) -> Any:
        """A broker's response to a request that comes by one of its listeners."""
        answers = self.begin(brokerId, key, version, body, listener)
        self.settle()
        (answer,) = answers
        return answer

    def begin(
        self, brokerId: int, key: ApiKey, version: int, body: Any, listener: str = "PLAINTEXT"
    ) -> list[Any]:
        """Send a request. The list gets the response."""
        isFlexible = version >= key.flexibleVersion
        head = struct.pack(">hhih", key, version, 7, 1) + b"c" + b"\0" * isFlexible
        handlers = self.brokers[brokerId].kafka._handlers
        header, decoded = decodeRequest(head + body.encode(version), handlers)
        state = ConnectionState(TRANSPORT, Listener(name=listener))
        answers: list[Any] = []

        def answered(response: Any) -> None:
            if isinstance(response, Failure):
                response.raiseException()
            if isinstance(response, list):
                data = b"".join(_bytesOf(each) for each in response)
            else:
                data = encodeResponse(header, response)
            found, end = key.responseClass.decode(data, version, 8 + isFlexible)
            assert end == len(data)
            answers.append(found)

        response = handlers[key](header, decoded, state)
        if isinstance(response, Deferred):
            response.addCallback(lambda found: _deliver(found, answered))
        else:
            _deliver(response, answered)
        return answers


def _deliver(response: Any, answered: Callable[[Any], None]) -> None:
    if callable(response):
        response(answered)
    else:
        answered(response)


def _bytesOf(part: bytes | Slice) -> bytes:
    if isinstance(part, bytes):
        return part
    assert part.file is not None
    data = os.pread(part.file.fileno(), part.size, part.position)
    releaseSlices((part,))
    return data


def _next(part: PartitionImage, leader: int) -> PartitionImage:
    return part._replace(
        leader=leader, leaderEpoch=part.leaderEpoch + 1, partitionEpoch=part.partitionEpoch + 1
    )
