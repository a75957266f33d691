"""C{fsync} by the kernel's asynchronous input and output."""

from __future__ import annotations

import errno
import os

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import TestCase

from pylogbroker.net.aiofsync import COUNT_MAX, AioFsync


class AioFsyncTests(TestCase):
    """Real files on this machine, which has this kind of C{fsync}."""

    def setUp(self) -> None:
        self.aio = AioFsync(reactor)
        self.addCleanup(self.aio.stop)
        path = self.mktemp()
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, self.file)
        os.write(self.file, b"to be synced")

    def begin(self, fileno: int) -> Deferred[int]:
        """A sync that the kernel has taken."""
        syncing: Deferred[int] = Deferred()
        self.assertTrue(self.aio.fsync(fileno, syncing.callback))
        return syncing

    async def test_again(self) -> None:
        """A sync ends with 0, and so does the next one."""
        self.assertEqual(await self.begin(self.file), 0)
        os.write(self.file, b"more")
        self.assertEqual(await self.begin(self.file), 0)

    async def test_later(self) -> None:
        """Not before the reactor has seen it; the file may be closed meanwhile."""
        other = os.dup(self.file)
        syncing = self.begin(other)
        os.close(other)
        self.assertNoResult(syncing)
        self.assertEqual(await syncing, 0)

    async def test_many(self) -> None:
        """Beyond a limit the kernel is not asked; when they have ended, it is again."""
        together = [self.begin(self.file) for _ in range(COUNT_MAX)]
        self.assertFalse(self.aio.fsync(self.file, self.fail))
        self.assertEqual(await gatherResults(together), [0] * COUNT_MAX)
        self.assertEqual(await self.begin(self.file), 0)

    def test_notAFile(self) -> None:
        """What cannot be synced so is left to the caller."""
        pipe = os.pipe()
        for end in pipe:
            self.assertFalse(self.aio.fsync(end, self.fail))
            os.close(end)
            self.assertFalse(self.aio.fsync(end, self.fail))

    def test_noSuchCalls(self) -> None:
        """Where the kernel has no such calls, or has them forbidden, nothing is asked of it."""
        other = AioFsync(reactor, (-1, -1, -1, -1))
        self.assertFalse(other.fsync(self.file, self.fail))
        self.assertFalse(other.fsync(self.file, self.fail))
        other.stop()

    def test_noDescriptor(self) -> None:
        """Where no descriptor is left, nothing is asked of the kernel."""

        def refuse(*_: int) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        self.patch(os, "eventfd", refuse)
        other = AioFsync(reactor)
        self.assertFalse(other.fsync(self.file, self.fail))
        self.assertEqual(other.fileno(), -1)
        other.stop()

    def test_stopped(self) -> None:
        """Behind C{stop} the reactor watches nothing, and the kernel is not asked."""
        aio = AioFsync(reactor)
        self.assertTrue(aio.fsync(self.file, self.fail))
        self.assertIn(aio, reactor.getReaders())
        aio.stop()
        aio.stop()
        self.assertNotIn(aio, reactor.getReaders())
        self.assertEqual(aio.fileno(), -1)
        self.assertFalse(aio.fsync(self.file, self.fail))

    async def test_error(self) -> None:
        """A sync that fails ends with the error's number."""
        syncing = self.begin(self.file)
        self.aio.ended(1, -errno.EIO)
        self.assertEqual(await syncing, errno.EIO)
        await self.begin(self.file)
