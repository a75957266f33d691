"""
Publishing so that one can say afterwards what has arrived.

In the 2011 protocol nobody answers a producer, so the broker is asked now and then, and at the end, whether it is done with all that was sent
(L{SyncProducer.confirm}). What it would drop without a word, a payload over C{max.message.size}, is refused here; what it would close the connection
for, a partition that it does not have, is asked before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.brokerchecks import closeAll, requirePartition
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.errors import MessageTooLargeError, PylogbrokerError
from pylogbroker.records.compression import NONE

BATCH_SIZE_MAX = 1_000_000
"""Bytes of messages in one request, unless a single one has more. Far under C{max.socket.request.bytes}."""

UNCONFIRMED_SIZE_MAX = 16 << 20
UNCONFIRMED_COUNT_MAX = 100_000
"""Bytes of messages, and messages, after which the broker is asked."""

RECONNECT_MS_MAX = 5_000
"""How long to look for a broker that was there a moment ago, when C{check} spoke to it: what was sent to it is in doubt in any case."""


class Publisher:
    """
    Sends messages to one partition, in batches.

    @ivar sentCount: messages sent.
    @ivar sentSize: bytes of them.
    @ivar confirmedCount: how many of them, from the first on, the broker is done with.
    @ivar batchCount: requests sent.
    @ivar destination: for people: who has taken all, once C{confirm} said so.
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
        @param broker: as L{SyncProducer} takes it.
        @param partition: or L{RANDOM_PARTITION}, for the broker to choose one for each request.
        @param batchCountMax: messages in one request.
        @param payloadSizeMax: the broker's C{max.message.size}, bytes.
        @param timeoutMs: for connecting, and for an answer.
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
        """
        Ask whether the broker is there and has such a partition.

        @raise PylogbrokerError: it is not, or has not.
        """
        await requirePartition(self._consumer, self._topic, max(self._partition, 0))

    async def add(self, payloads: Sequence[bytes]) -> None:
        """
        Take messages, and send the batches that are full.

        @raise MessageTooLargeError: a message alone, compressed if it is to be, is too large; C{sentCount} stand before it. Those behind it were not sent.
        @raise ConnectionError: see L{SyncProducer.send}.
        """
        for payload in payloads:
            if self._size + len(payload) > BATCH_SIZE_MAX:
                await self.flush()
            self._payloads.append(payload)
            self._size += len(payload)
            if len(self._payloads) >= self._batchCountMax:
                await self.flush()

    async def flush(self) -> None:
        """Send what is there. Raises as C{add}."""
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
            # Compressing can make one payload of many that is too large as one. (Without it, sizes were looked at before.)
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
        Wait until the broker is done with all that was sent.

        @raise ConnectionError: it is unknown whether it took all.
        """
        count = self.sentCount
        await self._producer.confirm(self._topic, max(self._partition, 0))
        self.confirmedCount = count
        self._unconfirmedSize = 0

    async def close(self) -> None:
        """Let go of the connections. Does not fail: what has arrived is C{confirm}'s to say."""
        await closeAll(self._consumer.close(), self._producer.close())

    def failed(self, error: PylogbrokerError, what: str) -> CommandError:
        """
        What to say when publishing broke off.

        @param what: messages are called.
        """
        text = str(error)
        if self.sentCount > self.confirmedCount:
            sure = f"the first {self.confirmedCount:,}" if self.confirmedCount else "none"
            text += f"\nof {self.sentCount:,} {what} sent, the broker has confirmed {sure}"
        return CommandError(text)
