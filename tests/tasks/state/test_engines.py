"""
Tests of the engines of stores: one suite for both, and what only a store on disk promises.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError, DirectoryLockedError, StorageError
from pylogbroker.tasks.state.engines import ChangelogMark, IStoreEngine
from pylogbroker.tasks.state.memoryengine import MemoryEngine
from pylogbroker.tasks.state.rocksdbengine import GENERATION_COUNT, RocksDbEngine
from tests.tasks.state import batchwriter

MARK = ChangelogMark(bytes(range(16)), 7)
ROOT = Path(__file__).parents[3]

KEYS = st.binary(max_size=3)
BATCHES = st.lists(st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3))), max_size=4)


if TYPE_CHECKING:
    _TestCase = SynchronousTestCase
else:
    _TestCase = object


class EngineContract(_TestCase):
    """What each engine promises."""

    def open(self) -> IStoreEngine:
        """An empty store."""
        raise NotImplementedError

    def test_empty(self) -> None:
        """A new store has no entries, no mark and no size to speak of."""
        engine = self.open()
        self.assertIsNone(engine.mark)
        self.assertIsNone(engine.get(b"a"))
        self.assertEqual(list(engine.range(None, None)), [])

    def test_putGetDelete(self) -> None:
        """Values of any bytes, also empty ones; L{None} deletes, also what is not there."""
        engine = self.open()
        engine.write([(b"", b"x"), (b"a", b""), (b"\xff\xff", b"\0")], MARK)
        self.assertEqual(
            [engine.get(each) for each in (b"", b"a", b"\xff\xff", b"\xff")],
            [b"x", b"", b"\0", None],
        )
        self.assertEqual(engine.mark, MARK)
        later = MARK._replace(offset=1 << 62)
        engine.write([(b"", None), (b"z", None), (b"a", b"1"), (b"a", b"2")], later)
        self.assertEqual([engine.get(each) for each in (b"", b"a", b"z")], [None, b"2", None])
        self.assertEqual(engine.mark, later)

    def test_onlyMark(self) -> None:
        """A batch without entries moves the mark."""
        engine = self.open()
        engine.write([], MARK)
        self.assertEqual((engine.mark, list(engine.range(None, None))), (MARK, []))

    @settings(max_examples=60, suppress_health_check=[HealthCheck.differing_executors])
    @given(BATCHES, st.none() | KEYS, st.none() | KEYS)
    def test_model(
        self,
        batches: list[list[tuple[bytes, bytes | None]]],
        start: bytes | None,
        end: bytes | None,
    ) -> None:
        """Any batches and any range give what a sorted dictionary gives."""
        engine = self.open()
        state: dict[bytes, bytes] = {}
        for batch in batches:
            engine.write(batch, MARK)
            for key, value in batch:
                state.pop(key, None)
                if value is not None:
                    state[key] = value
            self.assertEqual(
                list(engine.range(start, end)),
                [
                    entry
                    for entry in sorted(state.items())
                    if (start is None or entry[0] >= start) and (end is None or entry[0] < end)
                ],
            )
        for key in state:
            self.assertEqual(engine.get(key), state[key])
        engine.close()

    def test_snapshot(self) -> None:
        """A range shows the entries of the moment when it was asked for."""
        engine = self.open()
        engine.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], MARK)
        before = engine.range(None, None)
        begun = engine.range(b"a", b"c")
        self.assertEqual(next(begun), (b"a", b"1"))
        engine.write([(b"a", None), (b"b", b"2"), (b"bb", b"2"), (b"c", None)], MARK)
        self.assertEqual(list(before), [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
        self.assertEqual(list(begun), [(b"b", b"1")])
        self.assertEqual(list(engine.range(None, None)), [(b"b", b"2"), (b"bb", b"2")])

    def test_allOrNothing(self) -> None:
        """If the entries of a batch raise, neither they nor the mark are written."""
        engine = self.open()
        engine.write([(b"a", b"1")], MARK)

        def entries() -> object:
            yield b"a", b"2"
            raise ZeroDivisionError

        self.assertRaises(ZeroDivisionError, engine.write, entries(), MARK._replace(offset=8))
        self.assertEqual((engine.get(b"a"), engine.mark), (b"1", MARK))

    def test_clear(self) -> None:
        """Nothing is left, no mark either; a range that was begun ends; writing goes on."""
        engine = self.open()
        engine.write([(b"%d" % each, b"1") for each in range(9)], MARK)
        begun = engine.range(None, None)
        next(begun)
        engine.clear()
        self.assertEqual((list(begun), list(engine.range(None, None))), ([], []))
        self.assertIsNone(engine.mark)
        engine.write([(b"a", b"1")], MARK)
        self.assertEqual((list(engine.range(None, None)), engine.mark), ([(b"a", b"1")], MARK))

    def test_size(self) -> None:
        """The size grows with the entries, and is small again when they are gone."""
        engine = self.open()
        before = engine.size
        engine.write([(b"%d" % each, bytes(1000)) for each in range(500)], MARK)
        self.assertGreaterEqual(engine.size - before, 500_000)
        engine.clear()
        self.assertLess(engine.size, 10_000)

    def test_closeTwice(self) -> None:
        """The second close does nothing."""
        engine = self.open()
        engine.close()
        engine.close()


class MemoryEngineTests(EngineContract, SynchronousTestCase):
    """The contract, in memory."""

    def open(self) -> IStoreEngine:
        return MemoryEngine()

    def test_exactSize(self) -> None:
        """The size is that of keys and values, whatever was replaced or deleted."""
        engine = MemoryEngine()
        engine.write([(b"ab", b"123"), (b"c", b"1")], MARK)
        engine.write([(b"ab", b"1"), (b"c", None), (b"d", None)], MARK)
        self.assertEqual(engine.size, 3)


class RocksDbEngineTests(EngineContract, SynchronousTestCase):
    """The contract, and what a store on disk promises beyond it."""

    def setUp(self) -> None:
        self.damages: list[str] = []

    def openIn(self, directory: str, **more: int) -> RocksDbEngine:
        """A store in this folder."""
        engine = RocksDbEngine(directory, self.damages.append, **more)
        self.addCleanup(engine.close)
        return engine

    def open(self) -> RocksDbEngine:
        return self.openIn(os.path.join(self.mktemp(), "of", "store"))

    def test_reopened(self) -> None:
        """All entries and the mark are found again, also while a range was not read to its end."""
        directory = self.mktemp()
        engine = self.openIn(directory)
        engine.write([(b"a", b"1"), (b"b", b"2")], MARK)
        unread, begun = engine.range(None, None), engine.range(None, None)
        next(begun)
        engine.close()
        self.assertEqual((list(unread), list(begun)), ([], []))
        again = self.openIn(directory)
        self.assertEqual(list(again.range(None, None)), [(b"a", b"1"), (b"b", b"2")])
        self.assertEqual((again.mark, self.damages), (MARK, []))

    def test_manyGenerations(self) -> None:
        """A store that is opened and written for long keeps a bounded number of generations."""
        directory = self.mktemp()
        for count in range(1, GENERATION_COUNT + 10):
            engine = self.openIn(directory)
            engine.write([(b"a", b"%d" % count)], MARK._replace(offset=count))
            engine.close()
        engine = self.openIn(directory)
        self.assertEqual((engine.get(b"a"), self.damages), (b"%d" % count, []))
        self.assertEqual(len(list(engine._iterate(b"\2", b"\3"))), GENERATION_COUNT)

    def test_closed(self) -> None:
        """A closed store refuses everything, and names its folder."""
        directory = self.mktemp()
        engine = self.openIn(directory)
        engine.close()
        for call in (
            lambda: engine.get(b"a"),
            lambda: engine.range(None, None),
            lambda: engine.write([], MARK),
            lambda: engine.size,
            engine.clear,
        ):
            error = self.assertRaises(StorageError, call)
            self.assertIn(directory, str(error))
            self.assertIn("closed", str(error))

    def test_locked(self) -> None:
        """What another engine has open is refused, and stays as it is: that is no damage."""
        directory = self.mktemp()
        engine = self.openIn(directory)
        engine.write([(b"a", b"1")], MARK)
        error = self.assertRaises(DirectoryLockedError, self.openIn, directory)
        self.assertIn(directory, str(error))
        code = (
            "import sys; from pylogbroker.tasks.state.rocksdbengine import RocksDbEngine;"
            "RocksDbEngine(sys.argv[1], print)"
        )
        for marked in (False, True):
            if marked:
                Path(directory, "damaged").write_text("told by a test", encoding="utf-8")
            found = subprocess.run(
                [sys.executable, "-c", code, os.path.abspath(directory)],
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            self.assertIn("DirectoryLockedError", found.stderr)
            self.assertEqual((found.stdout, engine.get(b"a")), ("", b"1"))
        os.remove(os.path.join(directory, "damaged"))
        engine.close()
        self.assertEqual(self.openIn(directory).get(b"a"), b"1")

    def test_notADirectory(self) -> None:
        """A folder that cannot be made is refused with its name."""
        path = Path(self.mktemp())
        path.write_text("a file", encoding="utf-8")
        error = self.assertRaises(StorageError, self.openIn, str(path))
        self.assertIn(str(path), str(error))
        self.assertEqual(path.read_text(encoding="utf-8"), "a file")

    def test_notInstalled(self) -> None:
        """Without RocksDB, the error says what to install."""
        with patch.dict(sys.modules, {"rocksdict": None}):
            error = self.assertRaises(ConfigurationError, self.open)
        self.assertIn("pip install 'pylogbroker[tasks]'", str(error))


class DamageTests(SynchronousTestCase):
    """A store whose files are damaged begins empty, or is exactly what some batches made."""

    COUNT = 250

    def setUp(self) -> None:
        """Files as a kill leaves them: with tables, and a log that is not in them yet."""
        self.damages: list[str] = []
        self.folder = Path(self.mktemp())
        engine = batchwriter.openStore(str(self.folder))
        for number in range(self.COUNT):
            batchwriter.writeBatch(engine, number)
        engine._db.cancel_all_background(True)  # or it would remove files meanwhile
        self.tables = sorted(Path(each["name"]).name for each in engine._db.live_files())
        self.files = self.folder.with_suffix(".killed")
        shutil.copytree(self.folder, self.files)
        engine.close()

    def open(self) -> RocksDbEngine:
        """The store, which may begin empty."""
        engine = batchwriter.openStore(str(self.folder), self.damages.append)
        self.addCleanup(engine.close)
        return engine

    def restore(self) -> None:
        """The files are whole again."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.files, self.folder)

    def check(self, engine: RocksDbEngine) -> int:
        """
        The store has what its mark says, exactly.

        @return: how many batches it has.
        """
        count = 0 if engine.mark is None else engine.mark.offset
        self.assertEqual(dict(engine.range(None, None)), batchwriter.stateAfter(count))
        return count

    def checkEmpty(self, name: str) -> None:
        """The damage is told, and the store is empty and works."""
        engine = self.open()
        self.assertEqual(len(self.damages), 1, name)
        self.assertEqual(self.check(engine), 0, name)
        batchwriter.writeBatch(engine, 0)
        self.assertEqual(self.check(engine), 1)
        engine.close()
        engine = self.open()
        self.assertEqual(self.check(engine), 1)
        engine.close()

    def test_killed(self) -> None:
        """Without damage, all is there."""
        self.restore()
        self.assertEqual(self.check(self.open()), self.COUNT)
        self.assertEqual(self.damages, [])

    def test_files(self) -> None:
        """
        CURRENT, the MANIFEST or a table that is cut, overwritten or gone: the store begins empty,
        and says why. Of the MANIFEST, each cut that loses a table is noticed.
        """
        harms = {
            "gone": lambda path: path.unlink(),
            "empty": lambda path: path.write_bytes(b""),
            "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
            "half": lambda path: os.truncate(path, path.stat().st_size // 2),
        }
        (manifest,) = (path.name for path in self.files.glob("MANIFEST-*"))
        self.assertTrue(self.tables)
        for name in ("CURRENT", manifest, self.tables[0]):
            for harm, do in harms.items():
                self.restore()
                self.damages.clear()
                do(self.folder / name)
                self.checkEmpty(f"{name} {harm}")

    def test_cutManifest(self) -> None:
        """Wherever the MANIFEST is cut, nothing is lost without a word."""
        (manifest,) = self.files.glob("MANIFEST-*")
        size = manifest.stat().st_size
        emptyCount = 0
        for cut in range(0, size, max(size // 12, 1)):
            self.restore()
            self.damages.clear()
            os.truncate(self.folder / manifest.name, cut)
            engine = self.open()
            count = self.check(engine)
            engine.close()
            self.assertEqual(count, 0 if self.damages else self.COUNT, cut)
            emptyCount += not count
        self.assertGreater(emptyCount, 3)

    def test_cutLog(self) -> None:
        """A write-ahead log that is cut or overwritten leaves the batches before it, and a mark."""
        for number in range(4):
            for harm in ("cut", "overwritten"):
                self.restore()
                path = max(self.folder.glob("*.log"))
                size = path.stat().st_size
                where = Random(number).randrange(size)
                if harm == "cut":
                    os.truncate(path, where)
                else:
                    with open(path, "r+b") as file:
                        file.seek(where)
                        file.write(Random(number).randbytes(50))
                engine = self.open()
                self.assertGreaterEqual(self.COUNT, self.check(engine))
                engine.close()

    def test_contents(self) -> None:
        """
        A mark that cannot be read, entries without one, a generation that is missing and writes
        that are missing between generations: the store begins empty, and says why.
        """
        (first, *_rest, last) = self.generations()
        harms = {
            "unknown version": lambda database: database.put(b"\0", b"\1" + bytes(40)),
            "no mark": lambda database: database.delete(b"\0"),
            "writes before batch": lambda database: database.delete(first),
            "are missing": lambda database: database.put(last, struct.pack(">QQ", 0, self.COUNT)),
        }
        for reason, do in harms.items():
            self.restore()
            self.damages.clear()
            engine = self.open()
            do(engine._db)
            engine.close()
            self.checkEmpty(reason)
            self.assertIn(reason, self.damages[0])

    def generations(self) -> list[bytes]:
        """The keys of the generations."""
        self.restore()
        engine = self.open()
        found = [b"\2" + key for key, _value in engine._iterate(b"\2", b"\3")]
        engine.close()
        return found

    def test_failedWrite(self) -> None:
        """
        A write that fails is told with the folder's name, and moves no mark; the store begins empty
        when it is opened again.
        """
        self.restore()
        engine = self.open()
        engine._db.close()  # RocksDB fails
        error = self.assertRaises(StorageError, batchwriter.writeBatch, engine, self.COUNT)
        self.assertIn(str(self.folder), str(error))
        self.assertEqual(engine.mark, ChangelogMark(batchwriter.TOPIC_ID, self.COUNT))
        engine.close()
        self.checkEmpty("write")

    def test_foundWhileRead(self) -> None:
        """
        A damaged block fails what reads it, with the folder's name; the store begins empty when it
        is opened again.
        """
        for action in ("range", "get"):
            self.restore()
            self.damages.clear()
            engine = self.open()
            engine.close()
            for path in self.folder.glob("*.sst"):
                with open(path, "r+b") as file:
                    file.seek(path.stat().st_size // 3)
                    file.write(b"damage")
            engine = self.open()
            if action == "range":
                error = self.assertRaises(StorageError, list, engine.range(None, None))
            else:
                keys = batchwriter.stateAfter(self.COUNT)
                error = self.assertRaises(StorageError, list, map(engine.get, keys))
            self.assertIn(str(self.folder), str(error))
            engine.close()
            self.checkEmpty(action)
            self.assertIn("Corruption", self.damages[0])


class KillTests(SynchronousTestCase):
    """A process that is killed in the midst of its writes."""

    def test_killed(self) -> None:
        """
        After each kill −9 the store is exactly what its first batches made, with the mark of the
        last one, and all batches are in it that were confirmed.
        """
        folder = os.path.abspath(self.mktemp())
        confirmed = 0
        for round_ in range(4):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.tasks.state.batchwriter", folder],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            until = confirmed + 150 + 37 * round_
            for line in process.stdout:
                confirmed = int(line)
                if confirmed >= until:
                    break
            process.kill()
            rest = process.stdout.read().splitlines()
            process.stdout.close()
            process.wait()
            confirmed = max([confirmed, *map(int, rest[:-1])])
            self.assertGreaterEqual(confirmed, until)
            engine = batchwriter.openStore(folder, self.fail)
            mark = engine.mark
            assert mark is not None
            self.assertGreaterEqual(mark.offset, confirmed)
            self.assertEqual(dict(engine.range(None, None)), batchwriter.stateAfter(mark.offset))
            engine.close()
            confirmed = mark.offset
