"""
A partition of a coordinator's topic, in Apache's storage format: batches as bytes, of which a crash
loses what was not flushed.

An append waits until it is admitted, is then written, and is acknowledged when it is flushed. A
killed process loses what waits; a power cut also loses what was written behind any byte that was
not flushed. Recovery keeps whole batches with a good checksum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from pylogbroker.broker.kafka.coordinators.coordinatorlog import encodeRecords
from pylogbroker.coordinator.effects import Appended, Record
from pylogbroker.errors import FormatError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records import recordbatch

BATCH_SIZE_MAX = 1 << 20

Kept = Callable[[bytes, bytes | None], None]


class CoordinatorLog:
    """
    @ivar data: what was written.
    @ivar flushedSize: how much of it no crash takes away.
    @ivar records: those in the flushed part, decoded.
    @ivar isOffline: the log has failed, until the next start.
    """

    def __init__(self, onKept: Kept) -> None:
        """@param onKept: called with each record that is flushed, or found by a recovery."""
        self.data = bytearray()
        self.flushedSize = 0
        self.records: list[Record] = []
        self.isOffline = False
        self._onKept = onKept
        self._nextOffset = 0
        self._waiting: deque[tuple[bytes, Sequence[Record], Appended]] = deque()
        self._written: deque[tuple[int, Sequence[Record], Appended]] = deque()

    @property
    def isIdle(self) -> bool:
        """Whether all that was appended is flushed."""
        return not self._waiting and not self._written

    @property
    def pendingCount(self) -> int:
        """Appends that are not acknowledged."""
        return len(self._waiting) + len(self._written)

    # -- what a coordinator asks for

    def append(self, records: Sequence[Record], nowMs: int, done: Appended) -> None:
        """Append records as a batch."""
        if self.isOffline:
            done(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        (batch,) = encodeRecords(records, nowMs, BATCH_SIZE_MAX).buffers
        self._waiting.append((bytes(batch), list(records), done))

    # -- what happens to it

    def write(self, count: int) -> None:
        """The oldest appends that wait are written."""
        for _ in range(min(count, len(self._waiting))):
            batch, records, done = self._waiting.popleft()
            header = recordbatch.readHeader(batch)
            self.data += recordbatch.stampBatch(batch, header, self._nextOffset, 0, 0)
            self._nextOffset += len(records)
            self._written.append((len(self.data), records, done))

    def flush(self, count: int) -> None:
        """The oldest appends that were written are flushed."""
        flushed = [self._written.popleft() for _ in range(min(count, len(self._written)))]
        for size, records, done in flushed:
            self.flushedSize = size
            self._keep(records)
            done(ErrorCode.NONE)

    def refuse(self, error: ErrorCode) -> None:
        """The oldest append that waits is not admitted, when those before it are flushed."""
        if self._waiting:
            self.flush(len(self._written))
            _batch, _records, done = self._waiting.popleft()
            done(error)

    def fail(self) -> None:
        """A write or a flush fails: nothing is acknowledged any more."""
        self.isOffline = True
        pending = [*self._written, *self._waiting]
        self._written.clear()
        self._waiting.clear()
        for *_, done in pending:
            done(ErrorCode.KAFKA_STORAGE_ERROR)

    def crash(self, random: Random) -> int:
        """
        The process is killed, or the power is cut; then the log is opened again.

        @return: bytes that were lost.
        """
        self._waiting.clear()
        self._written.clear()
        before = len(self.data)
        if random.random() < 0.6:
            del self.data[random.randint(self.flushedSize, before) :]
        if random.random() < 0.2 and len(self.data) > self.flushedSize:
            self.data[random.randrange(self.flushedSize, len(self.data))] ^= 0x40
        self.isOffline = False
        self._recover()
        return before - len(self.data)

    def _recover(self) -> None:
        records: list[Record] = []
        end = self._nextOffset = 0
        data = bytes(self.data)
        try:
            while end + recordbatch.BATCH_OVERHEAD <= len(data):
                header = recordbatch.readHeader(data, end)
                if end + header.size > len(data):
                    break
                recordbatch.checkCrc(data, end, header)
                found = recordbatch.iterateRecords(data, end, header)
                records += [(each.key or b"", each.value) for each in found]
                end += header.size
                self._nextOffset = header.nextOffset
        except FormatError:
            pass  # the first bad byte ends the log
        if end < self.flushedSize or records[: len(self.records)] != self.records:
            raise AssertionError(f"{end} bytes were recovered, {self.flushedSize} were flushed")
        del self.data[end:]
        self.flushedSize = end
        self._keep(records[len(self.records) :])

    def compact(self, nowMs: int) -> None:
        """Only the last record of each key stays, and no tombstone. Nothing is under way."""
        last: dict[bytes, bytes | None] = {}
        for key, value in self.records:
            last.pop(key, None)
            last[key] = value
        self.records = [(key, value) for key, value in last.items() if value is not None]
        self.data.clear()
        for record in self.records:
            (batch,) = encodeRecords([record], nowMs, BATCH_SIZE_MAX).buffers
            header = recordbatch.readHeader(batch)
            self.data += recordbatch.stampBatch(batch, header, self._nextOffset, 0, 0)
            self._nextOffset += 1
        self.flushedSize = len(self.data)

    def _keep(self, records: Sequence[Record]) -> None:
        self.records += records
        for key, value in records:
            self._onKept(key, value)
