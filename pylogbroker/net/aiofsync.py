"""
L{AioFsync}: C{fsync} without a thread, by the kernel's asynchronous input and output
(C{io_submit(2)}; Linux 4.18 and later).

To wake a thread for each flush, and the reactor behind it, costs the broker more processor time
than the flush does, since both need the interpreter's lock. The kernel syncs on a worker of its
own, and the end of a sync makes a descriptor readable, as data does a socket.

Where this does not exist (other systems and architectures, sandboxes, file systems), or too many
syncs are under way, L{AioFsync.fsync} says so, and a worker must sync.

Rejected: C{caio}, whose import takes 90 ms and brings C{asyncio} and C{multiprocessing}.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

COUNT_MAX = 64
"""Syncs that may be under way."""

CallNumbers = tuple[int, int, int, int]
"""Of C{io_setup}, C{io_destroy}, C{io_getevents} and C{io_submit}."""

_CALL_NUMBERS: dict[str, CallNumbers] = {
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
}

_FSYNC = 2  # IOCB_CMD_FSYNC
_TELLS_EVENT = 1  # IOCB_FLAG_RESFD
_EVENT_WORDS = 4  # of struct io_event: data, obj, res, res2
_RESULT = 2


class _ControlBlock(ctypes.Structure):
    """C{struct iocb} of machines with the lower byte first."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("readWriteFlags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fileno", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventFileno", ctypes.c_uint32),
    )


def _callNumbers() -> CallNumbers | None:
    is64Bit = sys.platform == "linux" and sys.maxsize > 1 << 32
    return _CALL_NUMBERS.get(platform.machine()) if is64Bit else None


class AioFsync:
    """Asks the kernel for syncs, and tells their ends. Uses nothing before the first one."""

    def __init__(self, reactor: Any, numbers: CallNumbers | None = None) -> None:
        """
        @param reactor: provides C{IReactorFDSet}.
        @param numbers: by default those of this machine.
        """
        self._reactor = reactor
        self._numbers = numbers or _callNumbers()
        self._waiting: dict[int, Callable[[int], object]] = {}
        self._lastKey = 0
        self._event = -1

    def _open(self) -> None:
        """Set up the kernel's queue. Without effect where the kernel has none."""
        numbers, self._numbers = self._numbers, None
        if numbers is None:
            return
        setup, self._destroy, self._getEvents, self._submit = numbers
        # PyDLL keeps the interpreter's lock: no call waits.
        self._call: Any = ctypes.PyDLL(None).syscall
        self._call.argtypes = (ctypes.c_long,) * 6
        context = ctypes.c_long()
        if self._call(setup, COUNT_MAX, ctypes.addressof(context), 0, 0, 0):
            return
        self._context = context.value
        try:
            self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:  # no descriptor is left
            self._call(self._destroy, self._context, 0, 0, 0, 0)
            return
        self._block = _ControlBlock(opcode=_FSYNC, flags=_TELLS_EVENT, eventFileno=self._event)
        self._blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._blocksAt = ctypes.addressof(self._blocks)
        self._events = (ctypes.c_int64 * (_EVENT_WORDS * COUNT_MAX))()
        self._eventsAt = ctypes.addressof(self._events)
        self._reactor.addReader(self)

    def fsync(self, fileno: int, done: Callable[[int], object]) -> bool:
        """
        Sync a file, which may be closed meanwhile.

        @param done: called later with 0, or with the error's number; must not raise.
        @return: L{False}: the kernel was not asked, and C{done} is not called.
        """
        if self._event < 0:
            self._open()
            if self._event < 0:
                return False
        if len(self._waiting) >= COUNT_MAX:
            return False
        self._lastKey = self._block.data = key = self._lastKey + 1
        self._block.fileno = fileno
        if self._call(self._submit, self._context, 1, self._blocksAt, 0, 0) != 1:
            return False
        self._waiting[key] = done
        return True

    def doRead(self) -> None:
        """Some syncs have ended. Called by the reactor."""
        os.eventfd_read(self._event)
        events = self._events
        count = self._call(self._getEvents, self._context, 0, COUNT_MAX, self._eventsAt, 0)
        for at in range(0, _EVENT_WORDS * count, _EVENT_WORDS):
            self.ended(events[at], events[at + _RESULT])

    def ended(self, key: int, result: int) -> None:
        """
        The kernel's word on one sync.

        @param result: 0, or the error's number, negative.
        """
        done = self._waiting.pop(key, None)
        if done is not None:
            done(-result)

    def stop(self) -> None:
        """Call it when no sync is under way. L{fsync} refuses all from then on."""
        self._numbers = None
        if self._event >= 0:
            self._reactor.removeReader(self)
            self._call(self._destroy, self._context, 0, 0, 0, 0)
            os.close(self._event)
            self._event = -1

    def fileno(self) -> int:
        """What the reactor watches."""
        return self._event

    def logPrefix(self) -> str:
        return "AioFsync"

    def connectionLost(self, reason: object) -> None:
        """Nothing: the reactor stops."""
