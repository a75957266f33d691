"""
Links: numbered batches from one process of a topology to another one, over connections that come
and go. A module of its own, since instances and stream managers send so.

What must be true:

  - A batch is handled once at most: its receiver drops a number that it has.
  - What was sent to a process and is not confirmed is sent again to that process. It is never sent
  to another incarnation, which cannot know what the former one has handled.
  - Entries that were not sent yet wait for the next connection, to any incarnation.
  - Order is kept: a batch that does not follow the last one is refused, since what is between
  would be taken for a duplicate when it comes.
  - At most a window of bytes is under way, or one batch. The receiver opens the window when it
  confirms: so it bounds what waits in it. It never has to stop reading, which would hold back
  confirmations of the other direction, too.

Nothing here has a limit for what is not sent yet: the caller of L{LinkSender.push} looks at
L{LinkSender.unsentSize} first.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from pylogbroker.errors import WireError
from pylogbroker.topologies.messages import encodeBatch

WINDOW_SIZE = 1 << 20
"""Bytes that may be under way, not confirmed; it must be over L{CONFIRM_SIZE}."""

BATCH_SIZE = 64 << 10
"""Bytes of entries at which a batch is closed; one entry may be larger."""

CONFIRM_SIZE = 32 << 10
"""Bytes behind which a confirmation is due at once."""

CONFIRM_DELAY = 0.02
"""Seconds behind which a confirmation is due, however little it confirms."""


class _Chunk(NamedTuple):
    data: bytes
    amount: int


class _Batch(NamedTuple):
    number: int
    frame: bytes
    amount: int


class LinkSender:
    """
    The sending end.

    @ivar number: of the last batch that was made; 0: none was.
    @ivar unsentSize: bytes of entries that wait to be sent for the first time.
    @ivar unconfirmedSize: bytes of batches that were sent and are not confirmed.
    @ivar lostAmount: what was given up because the receiver was another incarnation: it may have
        been handled, or not.
    """

    __slots__ = (
        "_amount",
        "_batchSize",
        "_chunks",
        "_confirmed",
        "_isOpen",
        "_next",
        "_pieces",
        "_piecesSize",
        "_unconfirmed",
        "_windowSize",
        "lostAmount",
        "number",
        "unconfirmedSize",
        "unsentSize",
    )

    def __init__(self, windowSize: int = WINDOW_SIZE, batchSize: int = BATCH_SIZE) -> None:
        self.number = 0
        self.unsentSize = 0
        self.unconfirmedSize = 0
        self.lostAmount = 0
        self._windowSize = windowSize
        self._batchSize = min(batchSize, windowSize)
        self._pieces: list[bytes | memoryview] = []
        self._piecesSize = 0
        self._amount = 0
        self._chunks: deque[_Chunk] = deque()
        self._unconfirmed: deque[_Batch] = deque()
        self._next = 0  # of the unconfirmed ones, the first that this connection has not sent
        self._isOpen = False
        self._confirmed = 0

    @property
    def heldSize(self) -> int:
        """Bytes that are not confirmed, sent or not."""
        return self.unsentSize + self.unconfirmedSize

    @property
    def hasRoom(self) -> bool:
        """Whether another batch may be under way."""
        return self.unconfirmedSize < self._windowSize

    def push(self, entries: bytes | memoryview, amount: int) -> None:
        """
        Have entries sent, behind all that were pushed before.

        @param entries: one or several, encoded; a view is copied by L{fold} or L{take}.
        @param amount: how many tuples or numbers are in them.
        """
        size = len(entries)
        if self._piecesSize and self._piecesSize + size > self._batchSize:
            self.fold()
        self._pieces.append(entries)
        self._piecesSize += size
        self._amount += amount
        self.unsentSize += size

    def fold(self) -> None:
        """
        Copy what was pushed, at the end of a turn: views hold all that they are views of.
        """
        if self._pieces:
            self._chunks.append(_Chunk(b"".join(self._pieces), self._amount))
            self._pieces = []
            self._piecesSize = self._amount = 0

    def take(self) -> bytes | None:
        """
        The next frame for the connection: first those that are to be sent again.

        @return: L{None}: there is nothing to be sent, or no room, or no connection.
        """
        if not self._isOpen:
            return None
        if self._next < len(self._unconfirmed):
            self._next += 1
            return self._unconfirmed[self._next - 1].frame
        if not self.unsentSize or not self.hasRoom:
            return None
        if not self._chunks and self._pieces:
            entries, amount = self._pieces, self._amount
            size = self._piecesSize
            self._pieces = []
            self._piecesSize = self._amount = 0
        else:
            entries, amount, size = self._gathered()
        self.number += 1
        frame = encodeBatch(self.number, entries)
        self.unsentSize -= size
        self.unconfirmedSize += len(frame)
        self._unconfirmed.append(_Batch(self.number, frame, amount))
        self._next += 1
        return frame

    def _gathered(self) -> tuple[list[bytes | memoryview], int, int]:
        chunks = self._chunks
        data, amount = chunks.popleft()
        entries: list[bytes | memoryview] = [data]
        size = len(data)
        while chunks and size + len(chunks[0].data) <= self._batchSize:
            data, more = chunks.popleft()
            entries.append(data)
            size += len(data)
            amount += more
        return entries, amount, size

    def confirm(self, number: int) -> None:
        """
        The receiver has all batches up to a number. One that is confirmed already is ignored.

        @raise WireError: no batch has this number.
        """
        if number > self.number:
            raise WireError(f"batch {number} is confirmed; {self.number} is the last one")
        self._confirmed = max(number, self._confirmed)
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0].number <= number:
            self.unconfirmedSize -= len(unconfirmed.popleft().frame)
            if self._next:
                self._next -= 1

    def begin(self, isSameReceiver: bool, received: int) -> None:
        """
        The other end has said what it has: L{take} gives what the connection is to carry.

        @param isSameReceiver: whether it is the incarnation that the last connection led to.
        @param received: the last number that this incarnation has.
        @raise WireError: no batch has this number.
        """
        if isSameReceiver and received >= self._confirmed:  # it knows what it has confirmed
            self.confirm(received)
            if not self._unconfirmed:
                self.number = received  # what followed was cleared
        else:
            self._forget()
            self._confirmed = 0
        self._next = 0
        self._isOpen = True

    def end(self) -> None:
        """The connection is gone, or a new one has not begun: L{take} gives nothing."""
        self._isOpen = False

    def clear(self) -> None:
        """Give up all, sent or not; there is no connection."""
        self.fold()
        self.lostAmount += sum(chunk.amount for chunk in self._chunks)
        self._chunks.clear()
        self.unsentSize = 0
        self._forget()
        self.end()

    def _forget(self) -> None:
        self.lostAmount += sum(batch.amount for batch in self._unconfirmed)
        self._unconfirmed.clear()
        self.unconfirmedSize = 0


class LinkReceiver:
    """
    The receiving end. Make a new one for each incarnation of the sender.

    @ivar received: the number of the last batch that has arrived.
    """

    __slots__ = ("_confirmSize", "_confirmed", "_settled", "_settledSize", "_waiting", "received")

    def __init__(self, confirmSize: int = CONFIRM_SIZE) -> None:
        self.received = 0
        self._confirmSize = confirmSize
        self._waiting: deque[tuple[int, int]] = deque()
        self._settled = 0
        self._settledSize = 0
        self._confirmed = 0

    def accept(self, number: int, size: int) -> bool:
        """
        A batch has arrived.

        @param size: bytes of its frame.
        @return: whether it is to be handled; not one that has arrived before.
        @raise WireError: one before it has not arrived. The first one may have any number.
        """
        if number <= self.received:
            return False
        if self.received and number > self.received + 1:
            raise WireError(f"batch {number} behind batch {self.received}")
        self.received = number
        self._waiting.append((number, size))
        return True

    def settle(self, number: int) -> None:
        """The batches up to this number do not take up room any more."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= number:
            self._settled, size = waiting.popleft()
            self._settledSize += size

    @property
    def isConfirmDue(self) -> bool:
        """Whether a confirmation should be sent at once, rather than in L{CONFIRM_DELAY}."""
        return self._settledSize >= self._confirmSize

    def takeConfirm(self) -> int | None:
        """The number to confirm now; L{None}: there is nothing new."""
        if self._settled <= self._confirmed:
            return None
        self._confirmed = self._settled
        self._settledSize = 0
        return self._confirmed
