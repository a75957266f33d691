"""
Publishing to a cluster so that one can say afterwards what has arrived: L{pylogbroker.cli.publishing} for all brokers that are found in ZooKeeper.

Each request is followed by a question (the producer's C{confirm}), so that a message counts only when its broker has taken it. Nothing is sent twice:
a batch whose outcome is unknown ends the command, which says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.python.failure import Failure

from pylogbroker.cli import CommandError
from pylogbroker.cli.brokerchecks import closeAll
from pylogbroker.cli.publishing import BATCH_SIZE_MAX
from pylogbroker.config.connectionsettings import PLAIN, AccessSettings
from pylogbroker.errors import ConfigurationError, PylogbrokerError
from pylogbroker.producer.producer import Producer, ProducerData
from pylogbroker.records.compression import NONE

QUEUE_MS = 1_000
"""How long a message of a file waits for others at most. (Lines of a pipe do not: they are flushed.)"""


class ClusterPublisher:
    """
    Sends messages to the partitions of a topic, in batches.

    @ivar sentCount: messages given to the producer.
    @ivar sentSize: bytes of them.
    @ivar destination: for people.
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
        access: AccessSettings = PLAIN,
    ) -> None:
        """
        @param zookeeper: its servers, and perhaps a chroot.
        @param separator: what stands between key and message in what C{add} is given; L{None}: there are no keys.
        @param batchCountMax: messages in one request.
        @param payloadSizeMax: the brokers' C{max.message.size}, bytes.
        @param what: messages are called, in errors.
        @param access: how to get at it.
        @param timeoutMs: for ZooKeeper, for connecting, for an answer, and for closing.
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
                # What does not shrink when it is compressed must fit as one message, too.
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
        """For people."""
        return f"{self._topic}, whose brokers have taken them all"

    async def check(self) -> None:
        """
        Find the brokers.

        @raise pylogbroker.errors.ZookeeperError: ZooKeeper is not there, or the chroot is not.
        """
        await self._producer.start()

    async def add(self, payloads: Sequence[bytes]) -> None:
        """
        Take messages, as fast as they can go.

        @raise CommandError: something that was taken earlier did not arrive; the text says how much.
        """
        if self._separator is None:
            for start in range(0, len(payloads), self._batchCountMax):
                await self._send(payloads[start : start + self._batchCountMax])
        else:
            for payload in payloads:
                key, value = self._split(payload, self._separator)
                await self._send([value], key)

    async def _send(self, values: Sequence[bytes], key: bytes | str | None = None) -> None:
        """To one partition."""
        ready = self._producer.whenReady()
        if not ready.called:
            await ready
        if self._error is not None:
            await self._check()
        self.sentCount += len(values)
        self.sentSize += sum(map(len, values))
        self._producer.sendMany([ProducerData(self._topic, values, key)]).addErrback(self._failed)

    def _split(self, line: bytes, separator: bytes) -> tuple[bytes | str | None, bytes]:
        """The key of a line and the rest. A key is text, as to 0.7's clients, if it can be."""
        key, found, value = line.partition(separator)
        if not found:
            return None, line
        try:
            return key.decode(), value
        except UnicodeDecodeError:
            return key, value

    def _failed(self, failure: Failure) -> None:
        """The first counts; the producer has counted them all."""
        if self._error is None:
            self._error = (
                failure.value
                if isinstance(failure.value, PylogbrokerError)
                else PylogbrokerError(repr(failure.value))
            )

    async def _check(self) -> None:
        """When something went wrong: let what is under way come to its end, so that it can be told, and raise."""
        if self._error is not None:
            await self.close()
            raise self.failed(self._error, self._what)

    async def flush(self) -> None:
        """
        Send what is there, and wait until it is confirmed.

        @raise CommandError: something did not arrive; the text says how much.
        """
        await self._producer.flush()
        await self._check()

    confirm = flush

    async def close(self) -> None:
        """Send what was taken, within the time-out, and let go of everything. Does not fail; what did not arrive is in the log."""
        await closeAll(self._producer.close())

    def failed(self, error: PylogbrokerError, what: str) -> CommandError:
        """
        What to say when publishing broke off.

        @param what: messages are called.
        """
        counters = self._producer.counters
        told = f"{counters.writtenCount:,} were confirmed, {counters.failedCount:,} were not sent, {counters.unknownCount:,} may have been taken or not"
        return CommandError(
            f"{error}\nof {self.sentCount:,} {what} {told}" if self.sentCount else str(error)
        )
