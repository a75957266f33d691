"""
The handlers of requests over a broker without connections: time and workers come when the test says
so. Each request and response goes through its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogbroker.broker.kafka.broker import KafkaBroker
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler
from pylogbroker.broker.logmanager import LogManager, Partition
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.broker.server import Broker
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.pagecache import PageCache
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.requests import decodeRequest
from pylogbroker.protocol.kafka.responses import encodeResponse
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.kafkaformat import KafkaFormat
from pylogbroker.storage.logdirectory import LogDirectory, LogSettings
from pylogbroker.storage.partitionlog import PartitionSettings
from pylogbroker.storage.segments import byAge
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.testing.worker import ManualWorker
from tests.storage.batches import batch

ROOT = "/srv/logs"
START_MS = 1_300_000_000_000
HOUR_MS = 3_600_000


def resultOf(waiting: Deferred[Any], settle: Callable[[], None]) -> Any:
    """The result of a Deferred that fires when something has settled."""
    found: list[Any] = []
    waiting.addBoth(found.append)
    settle()
    (result,) = found
    if hasattr(result, "raiseException"):
        result.raiseException()
    return result


class RequestBench:
    """
    A broker and the handlers of a test.

    @ivar handlers: of the requests that the test sends.
    """

    def __init__(
        self,
        files: PowerCutFileSystem | None = None,
        metadata: MetadataManager | None = None,
        **properties: str,
    ) -> None:
        """@param metadata: of a cluster, open; L{None}: the broker's own."""
        self.clock = Clock()
        self.clock.rightNow = START_MS / 1000
        self.files = files or PowerCutFileSystem(lambda: int(self.clock.seconds() * 1000))
        self.worker, self.readWorker = ManualWorker(), ManualWorker()
        self.settings = BrokerSettings.fromProperties(
            {
                "brokerid": "0",
                "enable.zookeeper": "false",
                "log.dir": ROOT,
                **{key.replace("_", "."): value for key, value in properties.items()},
            },
            lambda warning: None,
        )
        counters = BrokerCounters(10)
        self.kafka = KafkaBroker(
            self.clock, self.settings, self.files, self.worker, Random(1), counters
        )
        if metadata is not None:
            self.kafka.metadata = metadata
        pageCache = PageCache(100)
        self.logManager = LogManager(
            self.clock, self.worker, self.settings, pageCache, counters.flushes
        )
        kept = PartitionSettings(1 << 30, 168 * HOUR_MS, 500, 3000, byAge(168 * HOUR_MS))
        self.directory = LogDirectory(
            ROOT,
            (Kafka07Format(), KafkaFormat()),
            self.files,
            LogSettings(lambda topic: kept, lambda topic: 1, 255, 512, self.kafka.batchLogSettings),
            self.logManager.nowMs,
        )
        self.broker = Broker(
            self.clock, self.directory, self.settings, self.logManager, pageCache,
            self.readWorker, counters,
        )  # fmt: skip
        self.files.makeDirectories(ROOT)
        for path in ("/", "/srv"):
            self.files.syncDirectory(path)
        opens = self.kafka.open if metadata is None else self.kafka._identify
        self.directory.open(lambda event: None, opens)
        self.kafka.serve(self.broker, self.directory, self.logManager)
        self.logManager.start(self.directory)
        self.topics = self.kafka.topics
        self.handlers: dict[ApiKey, Handler] = {}
        starting = self.kafka.start()
        self.settle()
        if metadata is None:
            self.do(starting)

    def settle(self) -> None:
        """Do whatever there is to do now."""
        for _ in range(1000):
            self.clock.advance(0)
            if not self.worker.performAll() and not self.readWorker.performAll():
                return
        raise AssertionError("it does not come to rest")

    def do(self, waiting: Deferred[Any]) -> Any:
        """The result of a Deferred that needs the workers."""
        return resultOf(waiting, self.settle)

    def begin(self, key: ApiKey, version: int, body: Any) -> Deferred[Any]:
        """
        Send a request.

        @return: fires with the decoded response.
        """
        head = struct.pack(">hhih", key, version, 7, 1) + b"c"
        tags = b"\0" if version >= key.flexibleVersion else b""
        header, decoded = decodeRequest(head + tags + body.encode(version), self.handlers)
        answer = self.handlers[key](header, decoded, ConnectionState(None))
        if not isinstance(answer, Deferred):
            answer, done = Deferred[Any](), answer
            answer.callback(done)

        def overTheWire(response: Any) -> Any:
            data = encodeResponse(header, response)
            start = 8 + len(tags)
            assert struct.unpack_from(">ii", data) == (len(data) - 4, 7)
            found, end = key.responseClass.decode(data, version, start)
            assert end == len(data)
            return found

        return answer.addCallback(overTheWire)

    def ask(self, key: ApiKey, version: int, body: Any) -> Any:
        """The response to a request, when all is done that it needs."""
        return self.do(self.begin(key, version, body))

    def create(self, name: str, count: int = 1, **configs: str) -> None:
        """A topic; C{_} in the names of settings stands for a dot."""
        found = {key.replace("_", "."): value for key, value in configs.items()}
        self.do(Deferred.fromCoroutine(self.topics.create(name, count, found)))

    def partition(self, name: str = "t", index: int = 0) -> Partition:
        """A partition that is there."""
        found = self.topics.find(name, index)
        assert found is not None
        return found

    def append(self, *values: bytes, name: str = "t", **batchFields: Any) -> None:
        """Append a batch to a topic's first partition; nothing is flushed for that."""
        result = self.broker.tryAppend(self.partition(name), batch(*values, **batchFields))
        assert result is not None
