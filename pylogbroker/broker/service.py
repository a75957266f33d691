"""
L{BrokerService}: a broker as a Twisted service, which starts and stops its parts in order.

The start takes the ports first, so that a taken port fails before anything is touched. It locks and
opens the log directory, which takes long after a crash. It registers in ZooKeeper before it accepts
a client, since no client may talk to a broker whose id is another's (gotcha 13). The stop follows
spec-0.7 log-storage §9: unregister, accept no client, let requests in progress and held requests
end (for L{STOP_GRACE_MS}), close the connections, flush and close every partition, write the
clean-shutdown marker, unlock the directory.

There are two ways to start. C{twistd} starts services before the reactor runs, and only an
exception then ends it with a status and a message. So L{BrokerService.privilegedStartService} and
C{startService} may block; the former iterates the reactor itself for ZooKeeper. An application with
a running reactor calls L{BrokerService.start}, which opens the directory on a worker.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random, SystemRandom
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredLock, maybeDeferred
from twisted.internet.task import deferLater
from twisted.internet.tcp import Port
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.authorization import Authorizer
from pylogbroker.broker.connection import (
    BrokerConnections,
    BrokerFactory,
    IProtocolHandler,
)
from pylogbroker.broker.kafka.broker import KafkaBroker
from pylogbroker.broker.kafka.protocol import isCurrentProtocol
from pylogbroker.broker.kafka07 import REQUEST_LOG, Kafka07Protocol, offsetsBefore
from pylogbroker.broker.logmanager import LogManager
from pylogbroker.broker.metadata.clustermembership import ClusterMembership
from pylogbroker.broker.registration import Registration, advertisedHost
from pylogbroker.broker.requestmemory import RequestMemory
from pylogbroker.broker.server import Broker
from pylogbroker.broker.status import BrokerStatus
from pylogbroker.cluster.metadataimage import Endpoint
from pylogbroker.config.allowlist import readAllowList
from pylogbroker.config.brokersettings import ZOOKEEPER, BrokerSettings
from pylogbroker.config.listenersettings import AUTO, KAFKA, KAFKA07, Listener, readListeners
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    NotAllowedError,
    PylogbrokerError,
    StorageError,
    UnknownPartitionError,
    ZookeeperError,
)
from pylogbroker.interfaces import (
    ConnectBroker,
    IFileSystem,
    IRecordFormat,
    IZookeeper,
    Slice,
)
from pylogbroker.metrics.brokermetrics import BrokerSnapshot
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.aiofsync import AioFsync
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.net.listeners import formatAddress, listenerEndpoint, listenError
from pylogbroker.net.pagecache import PIECE_SIZE, PageCache
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.net.sendfile import SendfileTransport
from pylogbroker.net.workers import IWorker, ThreadPoolWorker
from pylogbroker.protocol.kafka07.requests import Offsets
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.kafkaformat import KafkaFormat
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.kafka.batchlog import BatchLog, BatchLogSettings
from pylogbroker.storage.logdirectory import LogDirectory, LogSettings
from pylogbroker.storage.partitionlog import HOUR_MS, PartitionSettings
from pylogbroker.storage.segments import both, byAge, bySize
from pylogbroker.types import OffsetBounds, TopicPartition, formatCount

STOP_GRACE_MS = 5_000
LINGER_MS = 5_000
"""
A client has once to twice this time to end a connection that we have closed; less if
C{reader.idle.ms} is less.
"""
IDLE_TICK_COUNT = 10
"""How often within C{connections.max.idle.ms} the broker looks for idle connections."""
_STOP_LOOK_MS = 20
_TURN_SECONDS = 0.05
_OTHER_DESCRIPTOR_COUNT = 64
_SEGMENT_COUNT_LEAST = 4
_HEAP_BLOCK_SIZE = 8 << 20


def logSettings(
    settings: BrokerSettings,
    forBatches: Callable[[str], BatchLogSettings | None],
    isReplicated: Callable[[TopicPartition], bool] = lambda topicPartition: False,
) -> LogSettings:
    """
    The settings of the log directory.

    @param forBatches: gives those of a topic of Kafka's current protocol, L{None} of another.
    @param isReplicated: whether other brokers have one of its partitions, too.
    """

    def forTopic(topic: str) -> PartitionSettings:
        rollHours = settings.topicLogRollHours.get(topic, settings.logRollHours)
        keepHours = settings.topicLogRetentionHours.get(topic, settings.logRetentionHours)
        keepSize = settings.topicLogRetentionSize.get(topic, settings.logRetentionSize)
        return PartitionSettings(
            settings.topicLogFileSize.get(topic, settings.logFileSize),
            rollHours * HOUR_MS,
            settings.logFlushInterval,
            settings.topicFlushIntervalsMs.get(topic, settings.logDefaultFlushIntervalMs),
            both(byAge(keepHours * HOUR_MS), bySize(keepSize)),
        )

    return LogSettings(
        forTopic,
        lambda topic: settings.topicPartitionCountMap.get(topic, settings.numPartitions),
        settings.maxTopicNameLength,
        settings.maxOpenSegments,
        forBatches,
        isReplicated,
    )


def raiseDescriptorLimit() -> int:
    """Raise the soft limit of file descriptors to the hard one. Returns it; negative: none."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def keepFreedMemory() -> None:
    """
    Let the C library keep up to 16 MiB of freed memory at the end of its heap.

    With glibc's first limit, 128 KiB, each receive would take new pages from the kernel: a tenth of
    the cost of producing.
    """
    bytearray(_HEAP_BLOCK_SIZE)


def shareDescriptors(descriptorCount: int, segmentCountMax: int) -> tuple[int, int]:
    """
    Divide descriptors between clients and the log.

    @param descriptorCount: the limit of the process; negative: none.
    @param segmentCountMax: segment files that may be kept open.
    @return: clients that may be connected, at least half of the limit; and segment files that may
        be kept open then.
    """
    if descriptorCount < 0:
        return sys.maxsize, segmentCountMax
    left = descriptorCount - _OTHER_DESCRIPTOR_COUNT
    connectionCount = max(left - segmentCountMax, descriptorCount // 2)
    return connectionCount, min(segmentCountMax, max(left - connectionCount, _SEGMENT_COUNT_LEAST))


class BrokerService(Service):
    """
    One broker, started once and stopped once.

    @ivar connections: the clients, of all listeners.
    @ivar factories: of the listeners, in their order.
    @ivar registration: in ZooKeeper, while there is one.
    @ivar zookeeper: the client, while there is one. Callers may only read with it.
    """

    _log = Logger()
    name = "pylogbroker"

    def __init__(
        self,
        reactor: Any,
        settings: BrokerSettings,
        *,
        fileSystem: IFileSystem | None = None,
        random: Random | None = None,
        worker: Callable[[Any, str, int], IWorker] = ThreadPoolWorker,
        zookeeper: Callable[[], IZookeeper] | None = None,
        formats: Sequence[IRecordFormat] = (Kafka07Format(), KafkaFormat()),
        connectBroker: ConnectBroker | None = None,
        elapsed: Callable[[], float] | None = None,
    ) -> None:
        """
        @param fileSystem: by default the machine's.
        @param random: chooses partitions for producers that leave that to the broker.
        @param worker: makes a worker from the reactor, a name and a number of threads.
        @param zookeeper: makes the client, not connected; by default from C{zk.connect}.
        @param formats: of partitions; new ones get the first.
        @param connectBroker: makes connections to other brokers of a cluster
            (L{pylogbroker.programs.interbroker}).
        @param elapsed: seconds from any moment on, which no one sets, by which the broker knows
            that it may have been replaced; by default the reactor's, which follow the wall clock.
        """
        self._reactor = reactor
        self._settings = settings
        self.counters = BrokerCounters(settings.maxTopicCounters)
        self.ports: list[Any] = []
        self.registration: Registration | None = None
        self.zookeeper: IZookeeper | None = None
        self._makeZookeeper = zookeeper or partial(_zookeeperClient, reactor, settings)
        self._isRegistering = self._wasInterrupted = False
        self._flushWorker = worker(reactor, "pylogbroker-flush", settings.flushThreads)
        self._readWorker = worker(reactor, "pylogbroker-cold", settings.coldReadThreads)
        self._compactionWorker = worker(reactor, "pylogbroker-compaction", 1)
        pageCache = PageCache(settings.warmBytes // PIECE_SIZE)
        log = RateLimitedLogger(reactor, self._log)
        fileSystem = fileSystem or RealFileSystem()
        # Other file systems have a C{sync} of their own.
        self._aioFsync = AioFsync(reactor) if type(fileSystem) is RealFileSystem else None
        self.logManager = LogManager(
            reactor,
            self._flushWorker,
            settings,
            pageCache,
            self.counters.flushes,
            self._aioFsync,
        )
        self._random = random or SystemRandom()
        requestLog = Logger(REQUEST_LOG) if settings.logRequests else None
        self._clusterZookeeper: IZookeeper | None = None
        cluster = None
        if settings.metadataStore == ZOOKEEPER:
            self._clusterZookeeper = self._makeZookeeper()
            cluster = ClusterMembership(
                reactor,
                elapsed or reactor.seconds,
                self._clusterZookeeper,
                settings,
                fileSystem,
                self._flushWorker,
                self._random,
            )
        self.kafka = KafkaBroker(
            reactor,
            settings,
            fileSystem,
            self._flushWorker,
            self._random,
            self.counters,
            requestLog,
            self._compactionWorker if isinstance(fileSystem, RealFileSystem) else None,
            connectBroker,
            cluster,
        )
        self.directory = LogDirectory(
            settings.logDir,
            formats,
            fileSystem,
            logSettings(settings, self.kafka.batchLogSettings, self.kafka.isReplicated),
            self.logManager.nowMs,
        )
        self._broker = Broker(
            reactor,
            self.directory,
            settings,
            self.logManager,
            pageCache,
            self._readWorker,
            self.counters,
            self._topicCreated,
            self.kafka.isTopic,
        )
        self.kafka.serve(self._broker, self.directory, self.logManager)
        self._memory = RequestMemory(
            reactor, settings.maxRequestMemoryBytes, settings.frameDeadlineMs
        )
        self.connections = BrokerConnections(
            reactor,
            self._memory,
            self._broker,
            self.counters.connections,
            log,
            settings.maxConnections,
            settings.maxConnectionsPerIp,
            settings.maxConnectionsPerIpOverrides,
        )
        self.connections.limitRate(self.kafka.quotas.recordConnection, reactor)
        self._listeners = readListeners(settings)
        self.factories = self._makeFactories(log, requestLog)
        self._status = BrokerStatus(
            settings,
            self.counters,
            self.directory,
            self.logManager,
            self._memory,
            self.connections,
            self.kafka.groupSnapshots,
            self.kafka.clusterStatus.snapshot,
        )
        self._wasStopped = False
        self._turn = DeferredLock()  # starting and stopping, one after the other

    def _makeFactories(
        self, log: RateLimitedLogger, requestLog: Logger | None
    ) -> list[BrokerFactory]:
        settings = self._settings

        def report(message: str, error: PylogbrokerError) -> None:
            if not isinstance(error, NotAllowedError):  # logged already, once
                log.warn(message + ": {error}", error=error)

        def makeHandler(broker: Any) -> IProtocolHandler:
            return Kafka07Protocol(
                broker,
                settings.maxSocketRequestBytes,
                self.counters,
                report,
                self._random,
                self._reactor.seconds,
                requestLog,
            )

        kafka07 = makeHandler(self._broker)
        authorizer = None
        if settings.allowFile:
            authorizer = Authorizer(
                self._broker, readAllowList(settings.allowFile), makeHandler, log
            )

        def makeFactory(listener: Listener) -> BrokerFactory:
            dialect, kafka = listener.dialect, self.kafka.newProtocol(listener)
            if listener.isSasl and dialect == KAFKA:
                # There is nothing to choose: a frame that is too large is refused by its size, and
                # who the client is, it says later. (A certificate is not there before the choice.)
                return BrokerFactory(self.connections, kafka)

            def choose(transport: Any, greeting: bytes, isEnough: bool) -> IProtocolHandler | None:
                if authorizer is not None and not listener.isSasl:
                    return authorizer.handlerFor(transport)  # knows nothing of today's requests
                if dialect != AUTO:
                    return kafka if dialect == KAFKA else kafka07
                if not isEnough:
                    return None
                return kafka if isCurrentProtocol(greeting) else kafka07

            return BrokerFactory(self.connections, kafka if dialect == KAFKA else kafka07, choose)

        return [makeFactory(listener) for listener in self._listeners]

    # -- inspection

    def picture(self) -> BrokerSnapshot:
        """The status now, also before the start and after the stop."""
        isRegistered = None
        if self._settings.enableZookeeper:
            isRegistered = self.registration is not None and self.registration.isRegistered
        endpoint = formatAddress(self.ports[0].getHost()) if self.ports else ""
        return self._status.snapshot(endpoint, isRegistered)

    async def read(self, topic: str, partition: int, offset: int, sizeMax: int) -> bytes:
        """
        The bytes that a fetch would return; not counted.

        @raise PylogbrokerError: why the fetch is refused.
        """
        try:
            found = self._broker.fetch(topic, partition, offset, sizeMax, True)
            if isinstance(found, Deferred):
                found = await found
        except UnknownPartitionError:
            return b""
        return await self._readSlice(found, sizeMax)

    async def readBatches(self, topic: str, partition: int, offset: int, sizeMax: int) -> bytes:
        """
        Batches of a topic of today's protocol, from the one with an offset on, as a fetch would
        return them; not counted.

        @param sizeMax: bytes; the last batch may be cut, also if it is the first.
        @raise PylogbrokerError: why the fetch is refused.
        """
        log = self._batchLog(topic, partition)
        found = self._broker.readBatches(log, offset, sizeMax, True, False)
        if isinstance(found, Deferred):
            found = await found
        return await self._readSlice(found, sizeMax)

    async def recordBounds(self, topic: str, partition: int) -> OffsetBounds:
        """
        The log start offset and the high watermark of a partition of today's protocol.

        @raise UnknownPartitionError: there is no such partition.
        """
        log = self._batchLog(topic, partition)
        return OffsetBounds(log.logStartOffset, log.highWatermark)

    def _batchLog(self, topic: str, partition: int) -> BatchLog:
        found = self.kafka.topics.find(topic, partition)
        if found is None:
            raise UnknownPartitionError(f"{topic} has no partition {partition}")
        assert isinstance(found.log, BatchLog)
        return found.log

    async def _readSlice(self, found: Slice, sizeMax: int) -> bytes:
        file, position, size = found
        if file is None:
            return b""
        read = partial(os.pread, file.fileno(), min(size, sizeMax), position)
        try:
            return await self._readWorker.submit(read)
        finally:
            file.unpin()

    async def offsetsBefore(
        self, topic: str, partition: int, time: int, countMax: int
    ) -> list[int]:
        return await offsetsBefore(self._broker, Offsets(topic, partition, time, countMax))

    def _logMetrics(self) -> None:
        picture = self.picture()
        requests, total = picture.counters["requests"], picture.counters["allTopics"]
        self._log.info(
            "Metrics of broker {brokerId}: {messageCount} messages in, {producedSize} bytes in, "
            "{fetchedSize} bytes out, {produceCount} produce and {fetchCount} fetch requests since "
            "the start; {connectionCount} clients, {waitingCount} of them wait, "
            "{unflushedSize} bytes unflushed",
            brokerId=picture.brokerId,
            messageCount=total["messageCount"],
            producedSize=total["producedSize"],
            fetchedSize=total["fetchedSize"],
            produceCount=requests["produceCount"],
            fetchCount=requests["fetchCount"],
            connectionCount=picture.counters["connections"]["openCount"],
            waitingCount=sum(picture.waitingCounts.values()),
            unflushedSize=picture.unflushedSize,
            picture=picture,
        )

    # -- starting under twistd: before the reactor runs

    def privilegedStartService(self) -> None:
        """
        Take the ports, then lock and open the directory, then register. Blocks.

        @raise ConfigurationError: an endpoint string is wrong, or its port cannot be had; another
            broker has this id.
        @raise StorageError: the directory cannot be used.
        @raise ZookeeperError: ZooKeeper cannot be reached, or refuses.
        """
        keepFreedMemory()
        room, self.directory.cache.descriptorCountMax = shareDescriptors(
            raiseDescriptorLimit(), self._settings.maxOpenSegments
        )
        self.connections.countMax = min(self.connections.countMax or room, room)
        try:
            self._listenNow()
            self._turnUntil(Deferred.fromCoroutine(self._connectCluster()))
            self._openDirectory()
        except BaseException:
            self._turnUntil(Deferred.fromCoroutine(self._abandon()))
            raise
        if self._settings.enableZookeeper:
            try:
                self._turnUntil(
                    Deferred.fromCoroutine(self._interruptibly(self._enter(_addressNow)))
                )
            except PylogbrokerError:
                self._flushWorker.start()
                self._turnUntil(self.stop())
                raise

    def _listenNow(self) -> None:
        listening = Deferred.fromCoroutine(self._takePorts())
        if not listening.called:
            listening.addErrback(lambda _cancelled: None)  # and what it fails with later
            listening.cancel()
            raise ConfigurationError(
                "an endpoint in listeners needs a running reactor before it listens: "
                "twistd cannot wait"
            )
        self._turnUntil(listening)

    def _openDirectory(self) -> None:
        isShared = self.kafka.cluster is not None
        self.directory.open(self.logManager.report, self.kafka.open, isShared)

    def _turnUntil(self, waiting: Deferred[None]) -> None:
        outcomes: list[Any] = []
        waiting.addBoth(outcomes.append)
        while not outcomes:
            self._reactor.iterate(_TURN_SECONDS)
        if isinstance(outcomes[0], Failure):
            outcomes[0].raiseException()

    def startService(self) -> None:
        """Serve. The directory is open, and the broker registered."""
        super().startService()
        self._serve()

    def stopService(self) -> Deferred[None]:
        """
        @return: fires with L{None} when everything is flushed and closed; never fails. It waits for
            the end of a L{start} under way, which then does not wait for ZooKeeper.
        """
        if self._isRegistering:
            self._wasInterrupted = True
            if self.zookeeper is not None:
                self.zookeeper.close()
        return Deferred.fromCoroutine(self._inTurn(self._stop))

    def stop(self) -> Deferred[None]:
        """As L{stopService}, also of a subclass; without a start there is nothing to stop."""
        return self.stopService()

    # -- starting in a running reactor

    def start(self) -> Deferred[None]:
        """
        Listen, open the directory, register, serve.

        @return: fires with L{None} when clients are served; fails as L{privilegedStartService}
            raises, or when it is cancelled, and then nothing stays behind.
        """
        return Deferred.fromCoroutine(self._inTurn(self._start))

    async def _inTurn(self, act: Callable[[], Awaitable[None]]) -> None:
        async with self._turn:
            await act()

    async def _start(self) -> None:
        try:
            await self._takePorts()
        except Exception:
            await self._closePorts()
            raise
        self._flushWorker.start()
        try:
            await self._connectCluster()
            await self._flushWorker.submit(self._openDirectory)
        except Exception:  # not GeneratorExit: an abandoned start must not wait
            self._flushWorker.stop()
            self.directory.close()  # a cancelled start may have opened it
            await self._abandon()
            raise
        if self._settings.enableZookeeper:
            try:
                await self._interruptibly(self._enter(self._address))
            except Exception:
                await self._stop()
                raise
        self.startService()

    # -- ZooKeeper

    async def _connectCluster(self) -> None:
        """Know the cluster's metadata, where they are in ZooKeeper."""
        cluster, zookeeper = self.kafka.cluster, self._clusterZookeeper
        if cluster is not None and zookeeper is not None:
            self._flushWorker.start()
            self.zookeeper = zookeeper
            await self._interruptibly(self._connect(cluster, zookeeper))

    async def _connect(self, cluster: ClusterMembership, zookeeper: IZookeeper) -> None:
        await zookeeper.connect(self._settings.zkConnectionTimeoutMs)
        await cluster.connect()

    async def _abandon(self) -> None:
        """End a start that has not opened the directory."""
        await self._unregister()
        self._flushWorker.stop()
        await self._closePorts()

    async def _interruptibly(self, work: Awaitable[None]) -> None:
        """
        Do what needs ZooKeeper; C{stopService} ends it.

        @raise ClosedError: it did.
        """
        self._isRegistering = True
        try:
            await work
        except ZookeeperError:
            if not self._wasInterrupted:
                raise
        finally:
            self._isRegistering = False
        if self._wasInterrupted:
            raise ClosedError(f"broker {self._settings.brokerId} was stopped while it started")

    async def _enter(self, resolve: Callable[[str], Awaitable[str]]) -> None:
        """Every mistake in the settings is found before ZooKeeper is contacted."""
        settings = self._settings
        port = self._advertisedPort()
        advertised = self._listeners[0].advertisedHost
        host = await advertisedHost(
            settings.replace(hostName=advertised) if advertised else settings,
            self._listeningHosts(port),
            lambda sentence: self._log.warn("{sentence}", sentence=sentence),
            resolve,
        )
        if self._wasInterrupted:
            return
        self.zookeeper = zookeeper = self._clusterZookeeper or self._makeZookeeper()
        registration = Registration(
            self._reactor, zookeeper, settings.brokerId, host, port, self.directory.partitionCount
        )
        await zookeeper.connect(settings.zkConnectionTimeoutMs)
        self.registration = registration
        topics = [topic for topic in self.directory.topics if not self.kafka.isTopic(topic)]
        await registration.start(sorted(topics))
        self._log.info(
            "Broker {brokerId} is registered as {host}:{port}",
            brokerId=settings.brokerId,
            host=host,
            port=port,
        )
        if self.kafka.cluster is not None:
            await self.kafka.cluster.register(
                self._endpoints(host),
                self.directory.wasClosedCleanly,
                bool(self.directory.logs or self.directory.failures),
                self.kafka.topics.losses,
            )
            await self._flushWorker.submit(self.directory.forgetLosses)

    def _endpoints(self, host: str) -> list[Endpoint]:
        """
        Where clients of the current protocol, and other brokers, reach the listeners.

        @raise ConfigurationError: they reach none.
        """
        found: dict[str, Endpoint] = {}
        for listener, taken in zip(self._listeners, self.ports, strict=True):
            port = listener.advertisedPort or getattr(taken.getHost(), "port", 0)
            if listener.dialect != KAFKA07 and port and listener.name not in found:
                found[listener.name] = Endpoint(
                    listener.name, listener.advertisedHost or host, port, listener.protocol
                )
        if not found:
            raise ConfigurationError(
                "metadata.store=zookeeper: no listener with a port speaks Kafka's current protocol"
            )
        return list(found.values())

    def _listeningHosts(self, port: int) -> list[str]:
        addresses = [each.getHost() for each in self.ports]
        return [
            address.host
            for address in sorted(addresses, key=lambda each: getattr(each, "port", None) != port)
            if hasattr(address, "host")
        ]

    def _address(self, name: str) -> Deferred[str]:
        return self._flushWorker.submit(lambda: socket.gethostbyname(name))

    def _advertisedPort(self) -> int:
        first = self._listeners[0]
        port = first.advertisedPort or (first.endpoint and self._settings.port)
        port = port or getattr(self.ports[0].getHost(), "port", 0)
        if not port:
            raise ConfigurationError(
                "port=0: no port can be advertised, since the first of listeners has none: set port"
            )
        return int(port)

    def _topicCreated(self, topic: str) -> None:
        if self.registration is not None:
            self.registration.topicCreated(topic)

    async def _unregister(self) -> None:
        """
        Without a connection, ZooKeeper removes the entries when the session expires; we do not
        wait.
        """
        registration, self.registration = self.registration, None
        zookeeper, self.zookeeper = self.zookeeper, None
        if registration is not None:
            registration.stop()
        if self.kafka.cluster is not None:
            self.kafka.cluster.stop()
        if zookeeper is not None:
            isConnected = zookeeper.connected
            closed = zookeeper.close()
            if isConnected:
                await closed

    async def _takePorts(self) -> None:
        """A failure leaves the ports open that are already taken."""
        if self._wasStopped:
            raise RuntimeError(
                "a broker that was stopped cannot be started again: make another one"
            )
        for listener, factory in zip(self._listeners, self.factories, strict=True):
            try:
                endpoint = listenerEndpoint(self._reactor, listener)
                port = await endpoint.listen(factory)
            except Exception as error:
                raise ConfigurationError(
                    f"cannot listen on {str(listener)!r}: {listenError(error)}"
                ) from error
            if isinstance(port, Port):
                self._prepare(port)
            self.ports.append(port)

    def _prepare(self, port: Any) -> None:
        port.stopReading()
        # With Twisted's backlog of 50, most of a burst of clients would retry a second later.
        if port.backlog:  # a socket of systemd has the backlog of its unit
            port.socket.listen(max(port.backlog, socket.SOMAXCONN))
        if port.addressFamily in (socket.AF_INET, socket.AF_INET6):
            self._sizeBuffers(port.socket)
            if isinstance(port.factory, BrokerFactory):  # and not TLS's around it
                port.transport = SendfileTransport

    def _sizeBuffers(self, listening: Any) -> None:
        for option, size in (
            (socket.SO_SNDBUF, self._settings.socketSendBuffer),
            (socket.SO_RCVBUF, self._settings.socketReceiveBuffer),
        ):
            if size:
                listening.setsockopt(socket.SOL_SOCKET, option, size)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _serve(self) -> None:
        self._flushWorker.start()
        self._readWorker.start()
        self._compactionWorker.start()
        self.logManager.start(self.directory)
        self.kafka.start().addErrback(
            lambda failure: self._log.failure("Starting topics failed: this is a bug", failure)
        )
        idleMs, repeat = self._settings.readerIdleMs, self.logManager.repeat
        repeat(idleMs, self.connections.dropStalled)
        repeat(min(LINGER_MS, idleMs), self.connections.dropUnclosed)
        tickMs = max(self._settings.connectionsMaxIdleMs // IDLE_TICK_COUNT, 1)
        repeat(tickMs, partial(self.connections.dropIdle, IDLE_TICK_COUNT))
        if self._settings.metricsLogIntervalMs:
            repeat(self._settings.metricsLogIntervalMs, self._logMetrics)
        self._status.startedMs = self.logManager.nowMs()
        for port in self.ports:
            if isinstance(port, Port):
                port.startReading()
        self._log.info(
            "Broker {brokerId} serves {partitions} in {directory} on {listeners}",
            brokerId=self._settings.brokerId,
            partitions=formatCount(len(self.directory.logs), "partition"),
            directory=self._settings.logDir,
            listeners=" ".join(formatAddress(port.getHost()) for port in self.ports),
        )

    # -- stopping

    async def _closePorts(self) -> None:
        ports, self.ports = self.ports, []
        for port in ports:
            await maybeDeferred(port.stopListening)

    async def _stop(self) -> None:
        super().stopService()
        if self.directory.isOpen:
            await self.kafka.leave()
        await self._unregister()
        await self._closePorts()
        if not self.directory.isOpen:
            return
        self._wasStopped = True
        self.logManager.stopTimers()
        self._status.startedMs = 0
        self.kafka.endWaits()
        await self.kafka.brokerConnections.close()
        await self._endConnections()
        await self.logManager.drain()
        await self.kafka.topics.stop()
        logs = list(self.directory.logs.values())
        await gatherInBatches(self.logManager.close, logs)  # the disk syncs several at once
        self.logManager.stop()
        self.kafka.stop()
        try:
            marked = await self._flushWorker.submit(self._closeDirectory)
            if not marked:
                self._log.warn(
                    "No clean-shutdown marker was written, since a partition had failed: "
                    "the next start checks the last segments"
                )
        except (StorageError, ValueError) as error:  # ValueError: a partition was not closed
            self._log.error(
                "The clean-shutdown marker could not be written: {error}. "
                "The next start checks the last segments",
                error=error,
            )
        self._memory.close()
        self._flushWorker.stop()
        if self._aioFsync is not None:
            self._aioFsync.stop()
        self._readWorker.stop()
        self._compactionWorker.stop()
        self._log.info("Broker {brokerId} has stopped", brokerId=self._settings.brokerId)

    def _closeDirectory(self) -> bool:
        try:
            return self.directory.writeCleanShutdownMarker()
        finally:
            self.kafka.metadata.close()
            self.directory.close()

    async def _endConnections(self) -> None:
        """Held requests are handled all the same."""
        self.connections.abortDelayed()
        for connection in list(self.connections.open):
            connection.finish()
        await self._ended()
        for connection in list(self.connections.open):
            connection.abort()
        await self.logManager.drain()  # which ends all throttling
        await self._ended()
        if self.connections.orphaned:
            self._log.critical(
                "The last requests of {count} clients could not be handled in time: they are lost",
                count=len(self.connections.orphaned),
            )

    async def _ended(self) -> None:
        for _look in range(STOP_GRACE_MS // _STOP_LOOK_MS):
            if not self.connections.open and not self.connections.orphaned:
                return
            await deferLater(self._reactor, _STOP_LOOK_MS / 1000)


async def _addressNow(name: str) -> str:
    """Resolve before the reactor runs. A thread would keep Ctrl-C from ending the process."""
    return socket.gethostbyname(name)


def _zookeeperClient(reactor: Any, settings: BrokerSettings) -> IZookeeper:
    """kazoo is imported only where there is a ZooKeeper: a start costs less without it."""
    from pylogbroker.zookeeper.client import ZookeeperClient

    return ZookeeperClient.fromSettings(reactor, settings)
