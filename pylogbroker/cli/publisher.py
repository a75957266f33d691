"""
Publishing that knows afterwards which messages have arrived.

A 2011 broker does not answer a produce request. So the publisher sends OFFSETS requests: an answer
proves that the broker has processed the requests before it (L{SyncProducer.confirm}). The publisher
itself refuses a payload above C{max.message.size}, which the broker would silently drop.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from twisted.python.failure import Failure

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import endpointOf
from pylogbroker.cli.session import closeAll, requirePartition
from pylogbroker.cli.streams import Streams
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.config.connectionsettings import PLAIN, ConnectionSettings
from pylogbroker.errors import ConfigurationError, MessageTooLargeError, PylogbrokerError
from pylogbroker.producer.producer import Producer, ProducerData
from pylogbroker.records.compression import NONE

BATCH_SIZE_MAX = 1_000_000
"""Bytes of messages in one request, unless a single message has more."""

UNCONFIRMED_SIZE_MAX = 16 << 20
UNCONFIRMED_COUNT_MAX = 100_000
"""Bytes of messages, and messages, after which L{BrokerPublisher} asks for a confirmation."""

RECONNECT_MS_MAX = 5_000
"""Time to reconnect to a broker that C{check} has reached: its messages are in doubt anyway."""

QUEUE_MS = 1_000
"""Longest wait of a message in the queue of L{ClusterPublisher}."""


def newPublisher(options: Namespace, streams: Streams) -> BrokerPublisher | ClusterPublisher:
    """The publisher of a command with C{--broker} and C{--zookeeper}."""
    limits = {
        "codec": options.compression,
        "batchCountMax": options.batchSize,
        "payloadSizeMax": options.maxMessageSize,
        "timeoutMs": options.timeoutMs,
    }
    if options.zookeeper is None:
        broker = endpointOf(options)
        return BrokerPublisher(streams.reactor, broker, options.topic, options.partition, **limits)
    return ClusterPublisher(
        streams.reactor,
        options.zookeeper,
        options.topic,
        options.keySeparator,
        access=options.access,
        **limits,
    )


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
        *,
        codec: int = NONE,
        batchCountMax: int,
        payloadSizeMax: int,
        timeoutMs: float,
    ) -> None:
        """
        @param partition: or L{RANDOM_PARTITION}: the broker chooses one for each request.
        @param batchCountMax: messages in one request.
        @param payloadSizeMax: the broker's C{max.message.size}, bytes.
        """
        connectMs = min(timeoutMs, RECONNECT_MS_MAX)
        self._producer = SyncProducer(
            reactor,
            broker,
            payloadSizeMax=payloadSizeMax,
            timeoutMs=timeoutMs,
            connectTimeoutMs=connectMs,
        )
        self._consumer = SimpleConsumer(
            reactor, broker, timeoutMs=timeoutMs, connectTimeoutMs=timeoutMs
        )
        self.destination = f"{topic}-{partition} of {broker}, which has taken them all"
        self._topic = topic
        self._partition = partition
        self._codec = codec
        self._batchCountMax = batchCountMax
        self._payloads: list[bytes] = []
        self._size = 0
        self._unconfirmedSize = 0
        self.sentCount = 0
        self.sentSize = 0
        self.confirmedCount = 0
        self.batchCount = 0

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
            if len(self._payloads) >= self._batchCountMax:
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
            sending = self._producer.send(self._topic, self._partition, payloads, codec=self._codec)
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

    def failed(self, error: PylogbrokerError, what: str) -> CommandError:
        """The error of an interrupted publisher; C{what} is the word for messages."""
        text = str(error)
        if self.sentCount > self.confirmedCount:
            sure = f"the first {self.confirmedCount:,}" if self.confirmedCount else "none"
            text += f"\nof {self.sentCount:,} {what} sent, the broker has confirmed {sure}"
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
        separator: bytes | None,
        *,
        codec: int = NONE,
        batchCountMax: int,
        payloadSizeMax: int,
        timeoutMs: int,
        what: str = "lines",
        access: ConnectionSettings = PLAIN,
    ) -> None:
        """
        @param separator: between key and message; L{None}: there are no keys.
        @param what: the word for messages in errors.
        """
        if not zookeeper.strip():
            raise ConfigurationError("--zookeeper is empty")
        self._producer = Producer(
            reactor,
            {
                **access.asProperties(),
                "zk.connect": zookeeper,
                "zk.connectiontimeout.ms": str(timeoutMs),
                "producer.type": "async",
                "confirm": "true",
                "compression.codec": str(codec),
                "max.message.size": str(payloadSizeMax),
                "batch.size": str(batchCountMax),
                # A batch that compression does not shrink must fit into one message, too.
                "batch.bytes": str(max(1, min(BATCH_SIZE_MAX, payloadSizeMax * 3 // 4))),
                "queue.size": str(max(10_000, 4 * batchCountMax)),
                "queue.time": str(QUEUE_MS),
                "socket.timeout.ms": str(timeoutMs),
                "connect.timeout.ms": str(timeoutMs),
                "close.timeout.ms": str(timeoutMs),
            },
        )
        self._topic = topic
        self._what = what
        self._separator = separator
        self._batchCountMax = batchCountMax
        self._error: PylogbrokerError | None = None
        self.sentCount = 0
        self.sentSize = 0

    @property
    def batchCount(self) -> int:
        """Requests sent."""
        return self._producer.counters.batchCount

    @property
    def destination(self) -> str:
        """The receiver, for people."""
        return f"{self._topic}, whose brokers have taken them all"

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
            for start in range(0, len(payloads), self._batchCountMax):
                await self._send(payloads[start : start + self._batchCountMax])
        else:
            for payload in payloads:
                key, value = self._split(payload, self._separator)
                await self._send([value], key)

    async def _send(self, values: Sequence[bytes], key: bytes | str | None = None) -> None:
        ready = self._producer.whenReady()
        if not ready.called:
            await ready
        if self._error is not None:
            await self._check()
        self.sentCount += len(values)
        self.sentSize += sum(map(len, values))
        self._producer.sendMany([ProducerData(self._topic, values, key)]).addErrback(self._failed)

    def _split(self, line: bytes, separator: bytes) -> tuple[bytes | str | None, bytes]:
        """The key of a line and the rest. A key in UTF-8 is text, as in 0.7's clients."""
        key, found, value = line.partition(separator)
        if not found:
            return None, line
        try:
            return key.decode(), value
        except UnicodeDecodeError:
            return key, value

    def _failed(self, failure: Failure) -> None:
        if self._error is None:
            self._error = (
                failure.value
                if isinstance(failure.value, PylogbrokerError)
                else PylogbrokerError(repr(failure.value))
            )

    async def _check(self) -> None:
        if self._error is not None:
            await self.close()
            raise self.failed(self._error, self._what)

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

    def failed(self, error: PylogbrokerError, what: str) -> CommandError:
        """The error of an interrupted publisher; C{what} is the word for messages."""
        counters = self._producer.counters
        if not self.sentCount:
            return CommandError(str(error))
        return CommandError(
            f"{error}\nof {self.sentCount:,} {what} {counters.writtenCount:,} were confirmed, "
            f"{counters.failedCount:,} were not sent, "
            f"{counters.unknownCount:,} may have been taken or not"
        )
