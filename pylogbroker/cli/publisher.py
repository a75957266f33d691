"""
Publishing that knows afterwards which messages have arrived.

A 2011 broker does not answer a produce request. So the publisher sends OFFSETS requests: an answer
proves that the broker has processed the requests before it (L{SyncProducer.confirm}). The publisher
itself refuses a payload above C{max.message.size}, which the broker would silently drop.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple

from twisted.python.failure import Failure

from pylogbroker.cli import CommandError
from pylogbroker.cli.session import requirePartition
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.config.securitysettings import SecuritySettings
from pylogbroker.errors import ConfigurationError, MessageTooLargeError, PylogbrokerError
from pylogbroker.net.deferreds import batched, closeAll
from pylogbroker.producer.producer import Producer, ProducerData

BATCH_SIZE_MAX = 1_000_000
"""Bytes of messages in one request, unless a single message has more."""

UNCONFIRMED_SIZE_MAX = 16 << 20
UNCONFIRMED_COUNT_MAX = 100_000
"""Bytes of messages, and messages, after which L{BrokerPublisher} asks for a confirmation."""

RECONNECT_MS_MAX = 5_000
"""Time to reconnect to a broker that C{check} has reached: its messages are in doubt anyway."""

QUEUE_MS = 1_000
"""Longest wait of a message in the queue of L{ClusterPublisher}."""


class PublisherLimits(NamedTuple):
    """
    The limits of a publisher.

    @ivar codec: compresses each batch.
    @ivar batchCountMax: messages in one request.
    @ivar payloadSizeMax: the broker's C{max.message.size}, bytes.
    @ivar timeoutMs: for connecting and for each answer.
    """

    codec: int
    batchCountMax: int
    payloadSizeMax: int
    timeoutMs: int

    @classmethod
    def of(cls, options: Namespace) -> PublisherLimits:
        """The limits that C{BATCHING} and others set."""
        sizeMax = options.maxMessageSize
        return cls(options.compression, options.batchSize, sizeMax, options.timeoutMs)


class BrokerPublisher:
    """
    Sends batches of messages to one partition of one broker.

    @ivar sentCount: messages sent.
    @ivar sentSize: bytes sent.
    @ivar confirmedCount: messages, from the first on, that the broker has processed.
    @ivar batchCount: requests sent.
    @ivar destination: the receiver, for people.
    """

    def __init__(
        self,
        reactor: Any,
        broker: str,
        topic: str,
        partition: int,
        limits: PublisherLimits,
        what: str = "lines",
    ) -> None:
        """
        @param partition: or L{RANDOM_PARTITION}: the broker chooses one for each request.
        @param what: the word for messages in errors.
        """
        timeoutMs = limits.timeoutMs
        self._producer = SyncProducer(
            reactor,
            broker,
            payloadSizeMax=limits.payloadSizeMax,
            timeoutMs=timeoutMs,
            connectTimeoutMs=min(timeoutMs, RECONNECT_MS_MAX),
        )
        self._consumer = SimpleConsumer(
            reactor, broker, timeoutMs=timeoutMs, connectTimeoutMs=timeoutMs
        )
        self.destination = f"{topic}-{partition} of {broker}, which has taken them all"
        self._topic = topic
        self._partition = partition
        self._limits = limits
        self._what = what
        self._payloads: list[bytes] = []
        self._size = self._unconfirmedSize = 0
        self.sentCount = self.sentSize = self.confirmedCount = self.batchCount = 0

    async def check(self) -> None:
        """Check that the broker answers and has the partition."""
        await requirePartition(self._consumer, self._topic, max(self._partition, 0))

    async def add(self, payloads: Sequence[bytes]) -> None:
        """
        Take messages, and send full batches.

        @raise MessageTooLargeError: one message, compressed if requested, is too large. The
            C{sentCount} messages before it were sent, those after it were not.
        @raise BrokerConnectionError: see L{SyncProducer.send}.
        """
        for payload in payloads:
            if self._size + len(payload) > BATCH_SIZE_MAX:
                await self.flush()
            self._payloads.append(payload)
            self._size += len(payload)
            if len(self._payloads) >= self._limits.batchCountMax:
                await self.flush()

    async def flush(self) -> None:
        """Send the incomplete batch. Raises as C{add}."""
        payloads, self._payloads, self._size = self._payloads, [], 0
        if payloads:
            await self._send(payloads)
        if (
            self._unconfirmedSize > UNCONFIRMED_SIZE_MAX
            or self.sentCount - self.confirmedCount > UNCONFIRMED_COUNT_MAX
        ):
            await self.confirm()

    async def _send(self, payloads: list[bytes]) -> None:
        try:
            codec = self._limits.codec
            sending = self._producer.send(self._topic, self._partition, payloads, codec=codec)
        except MessageTooLargeError:
            # Many payloads can be too large as one compressed message. Sizes were checked before.
            if len(payloads) == 1:
                raise
            middle = len(payloads) // 2
            await self._send(payloads[:middle])
            await self._send(payloads[middle:])
            return
        size = sum(map(len, payloads))
        self.batchCount += 1
        self.sentCount += len(payloads)
        self.sentSize += size
        self._unconfirmedSize += size
        await sending

    async def confirm(self) -> None:
        """
        Wait until the broker has processed all requests.

        @raise BrokerConnectionError: it is unknown whether it took all messages.
        """
        count = self.sentCount
        await self._producer.confirm(self._topic, max(self._partition, 0))
        self.confirmedCount = count
        self._unconfirmedSize = 0

    async def close(self) -> None:
        """Close the connections. Does not fail; C{confirm} tells what has arrived."""
        await closeAll(self._consumer.close(), self._producer.close())

    def failed(self, error: PylogbrokerError) -> CommandError:
        """The error of an interrupted publisher."""
        text = str(error)
        if self.sentCount > self.confirmedCount:
            sure = f"the first {self.confirmedCount:,}" if self.confirmedCount else "none"
            text += f"\nof {self.sentCount:,} {self._what} sent, the broker has confirmed {sure}"
        return CommandError(text)


class ClusterPublisher:
    """
    Sends batches of messages to all partitions of a topic in a cluster.

    An OFFSETS request follows each produce request (the producer's C{confirm}), so a message counts
    only when its broker has taken it. Nothing is sent twice: a batch with an unknown outcome ends
    the command with an error.

    Its variables are those of L{BrokerPublisher}.
    """

    def __init__(
        self,
        reactor: Any,
        zookeeper: str,
        topic: str,
        limits: PublisherLimits,
        access: SecuritySettings,
        separator: bytes | None = None,
        what: str = "lines",
    ) -> None:
        """
        @param separator: between key and message; L{None}: there are no keys.
        @param what: the word for messages in errors.
        """
        if not zookeeper.strip():
            raise ConfigurationError("--zookeeper is empty")
        timeout = str(limits.timeoutMs)
        self._producer = Producer(
            reactor,
            {
                **access.asProperties(),
                "zk.connect": zookeeper,
                "zk.connectiontimeout.ms": timeout,
                "producer.type": "async",
                "confirm": "true",
                "compression.codec": str(limits.codec),
                "max.message.size": str(limits.payloadSizeMax),
                "batch.size": str(limits.batchCountMax),
                # A batch that compression does not shrink must fit into one message, too.
                "batch.bytes": str(max(1, min(BATCH_SIZE_MAX, limits.payloadSizeMax * 3 // 4))),
                "queue.size": str(max(10_000, 4 * limits.batchCountMax)),
                "queue.time": str(QUEUE_MS),
                "socket.timeout.ms": timeout,
                "connect.timeout.ms": timeout,
                "close.timeout.ms": timeout,
            },
        )
        self.destination = f"{topic}, whose brokers have taken them all"
        self._topic = topic
        self._what = what
        self._separator = separator
        self._batchCountMax = limits.batchCountMax
        self._failures: list[Failure] = []
        self.sentCount = self.sentSize = 0

    @property
    def batchCount(self) -> int:
        """Requests sent."""
        return self._producer.counters.batchCount

    async def check(self) -> None:
        """
        Find the brokers.

        @raise pylogbroker.errors.ZookeeperError: ZooKeeper cannot be reached, or has no such
            chroot.
        """
        await self._producer.start()

    async def add(self, payloads: Sequence[bytes]) -> None:
        """
        Take messages as fast as the producer can send them.

        @raise CommandError: earlier messages did not arrive; the text says how many.
        """
        if self._separator is None:
            for batch in batched(payloads, self._batchCountMax):
                await self._send(batch)
        else:
            for payload in payloads:
                key, value = self._split(payload, self._separator)
                await self._send([value], key)

    async def _send(self, values: Sequence[bytes], key: bytes | str | None = None) -> None:
        ready = self._producer.whenReady()
        if not ready.called:
            await ready
        await self._check()
        self.sentCount += len(values)
        self.sentSize += sum(map(len, values))
        sent = self._producer.sendMany([ProducerData(self._topic, values, key)])
        sent.addErrback(self._failures.append)

    def _split(self, line: bytes, separator: bytes) -> tuple[bytes | str | None, bytes]:
        """The key of a line and the rest. A key in UTF-8 is text, as in 0.7's clients."""
        key, found, value = line.partition(separator)
        if not found:
            return None, line
        try:
            return key.decode(), value
        except UnicodeDecodeError:
            return key, value

    async def _check(self) -> None:
        if self._failures:
            await self.close()
            raise self.failed(self._failures[0].value)

    async def flush(self) -> None:
        """
        Send all messages, and wait until they are confirmed.

        @raise CommandError: messages did not arrive; the text says how many.
        """
        await self._producer.flush()
        await self._check()

    confirm = flush

    async def close(self) -> None:
        """Send the rest within the time-out, and close. Does not fail; the log has the losses."""
        await closeAll(self._producer.close())

    def failed(self, error: BaseException | None) -> CommandError:
        """The error of an interrupted publisher."""
        counters = self._producer.counters
        text = str(error) if isinstance(error, PylogbrokerError) else repr(error)
        if self.sentCount:
            text += (
                f"\nof {self.sentCount:,} {self._what} {counters.writtenCount:,} were confirmed, "
                f"{counters.failedCount:,} were not sent, "
                f"{counters.unknownCount:,} may have been taken or not"
            )
        return CommandError(text)


Publisher = BrokerPublisher | ClusterPublisher
