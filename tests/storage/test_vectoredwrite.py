"""
Tests of writing whole sets.
"""

from __future__ import annotations

import errno

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import IFile
from pylogbroker.storage.files import BUFFER_COUNT_MAX, WriteResult, writeAll
from pylogbroker.testing.powercut import PowerCutFileSystem


class WriteWholeTests(SynchronousTestCase):
    """Whole buffers, or none."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem()
        self.file: IFile = self.files.open("/a", create=True)
        self.file.writeAt(0, [b"old"])

    def test_all(self) -> None:
        """All buffers are written behind the end, in one operation if there are not too many."""
        before = self.files.operationCount
        self.assertEqual(writeAll(self.file, 3, [b"ab", b"", b"c"], 3), WriteResult(3, 3, None))
        self.assertEqual(self.files.contents("/a"), b"oldabc")
        self.assertEqual(self.files.operationCount - before, 1)

    def test_none(self) -> None:
        """Nothing to write is no operation."""
        before = self.files.operationCount
        self.assertEqual(writeAll(self.file, 3, [], 0), WriteResult(0, 0, None))
        self.assertEqual(self.files.operationCount, before)

    def test_many(self) -> None:
        """More than a gather-write takes go in as few operations as can be."""
        before = self.files.operationCount
        buffers = [b"%06d" % i for i in range(2 * BUFFER_COUNT_MAX + 1)]
        self.assertEqual(
            writeAll(self.file, 3, buffers, 6 * len(buffers)),
            WriteResult(len(buffers), 6 * len(buffers), None),
        )
        self.assertEqual(self.files.contents("/a"), b"old" + b"".join(buffers))
        self.assertEqual(self.files.operationCount - before, 3)

    def test_error(self) -> None:
        """A failing write leaves the file as it was, cut to be sure, and says why."""
        self.files.fail("write", "/a", errno.EIO)
        bufferCount, size, problem = writeAll(self.file, 3, [b"ab"], 2)
        assert problem is not None
        self.assertEqual((bufferCount, size, problem.errno), (0, 0, errno.EIO))
        self.assertEqual(self.files.contents("/a"), b"old")

    def test_cannotBeCut(self) -> None:
        """If the torn end cannot be cut off, that is raised."""
        self.files.sizeMax = 4
        self.files.fail("truncate", "/a", errno.EIO)
        self.assertEqual(
            self.assertRaises(StorageError, writeAll, self.file, 3, [b"ab"], 2).action, "truncate"
        )

    @given(st.lists(st.binary(max_size=9), max_size=9), st.integers(0, 60))
    def test_fullDisk(self, buffers: list[bytes], room: int) -> None:
        """
        Wherever the disk becomes full, the file ends with a whole buffer; no buffer that would have
        fitted is missing, and a second attempt goes on.
        """
        self.setUp()
        whole = b"".join(buffers)
        self.files.sizeMax = 3 + room
        bufferCount, size, problem = writeAll(self.file, 3, buffers, len(whole))
        self.assertEqual(self.files.contents("/a"), b"old" + b"".join(buffers[:bufferCount]))
        self.assertEqual(size, len(b"".join(buffers[:bufferCount])))
        if problem is None:
            self.assertEqual(bufferCount, len(buffers))
        else:
            self.assertEqual(problem.errno, errno.ENOSPC)
            self.assertTrue(size + len(buffers[bufferCount]) > room)
        self.files.sizeMax = None
        writeAll(self.file, 3 + size, buffers[bufferCount:], len(whole) - size)
        self.assertEqual(self.files.contents("/a"), b"old" + whole)
