"""
Tests for L{pylogbroker.lake.commit}.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import PostCommitError, StorageError, TableBusyError, TableError
from pylogbroker.lake import commit
from pylogbroker.lake.commit import TableWriter, checkNames, checkStaged, localPath
from pylogbroker.lake.manifest import NO_RUN
from pylogbroker.lake.table import LOCK, MANIFESTS, STAGING, Table, fileName
from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError
from tests.lake.tables import (
    HOUR,
    PATH,
    PLACE,
    compact,
    load,
    manifest,
    plainRows,
    rows,
    write,
)

RANDOM_COUNT = 5


class TableCase(SynchronousTestCase):
    """A machine with a table of two runs and a compaction."""

    def setUp(self) -> None:
        self.files = self.machine()

    def machine(self) -> PowerCutFileSystem:
        files = PowerCutFileSystem()
        files.makeDirectories("/data")
        files.syncDirectory("/")
        return files

    def filled(self) -> PowerCutFileSystem:
        files = self.machine()
        load(files, "first")
        load(files, "second")
        compact(files, "third")
        return files

    def assertWhole(self, files: PowerCutFileSystem, count: int) -> None:
        """The first C{count} rows are there, each once, for every reader, as the offsets say."""
        last = Table(PATH, files).last()
        assert last is not NO_RUN
        self.assertEqual(rows(files), list(range(count)))
        self.assertEqual(plainRows(files), list(range(count)))
        self.assertEqual(last.positions, {PLACE: count})


class CommitTests(TableCase):
    """What a commit leaves."""

    def test_runs(self) -> None:
        """
        Each run goes on where the one before ended; a compaction changes no row; nothing is left in
        the staging folder.
        """
        files = self.filled()
        self.assertWhole(files, 20)
        self.assertEqual(files.list(f"{PATH}/{STAGING}"), [])
        self.assertEqual(
            sorted(files.list(f"{PATH}/{MANIFESTS}")),
            [f"{number:012d}.json" for number in (1, 2, 3)],
        )
        self.assertEqual(len(files.list(f"{PATH}/{HOUR}1")), 1)

    def test_durable(self) -> None:
        """What was committed survives a power cut right behind it, synced or not."""
        for seed in range(RANDOM_COUNT):
            files = self.filled()
            files.cutPower(Random(seed) if seed else None)
            self.assertWhole(files, 20)

    def test_partialCopy(self) -> None:
        """
        A copy of a table whose manifests are older than its files takes no run that would come
        beside them, or be taken for them; nothing has changed.
        """
        for name in (fileName(2, 0, "x.parquet"), fileName(3, 1, "x.parquet")):
            files = self.machine()
            load(files, "first")
            write(files, f"{PATH}/{HOUR}1/{name}", b"99\n")
            self.assertIn(
                f"hour=1/{name}: no manifest knows its run",
                str(self.assertRaises(TableError, load, files, "second")),
            )
            self.assertEqual(files.list(f"{PATH}/{STAGING}"), [])
            files.remove(f"{PATH}/{HOUR}1/{name}")
            self.assertWhole(files, 10)

    def test_anotherFileThere(self) -> None:
        """
        A run that was not published finds a file of another size under its name: that is said, and
        the staged one stays.
        """
        files = self.machine()
        load(files, "first")
        files.fail("link", ".parquet", errno.EIO)
        self.assertRaises(PostCommitError, load, files, "second")
        name = f"{PATH}/{HOUR}1/{fileName(2, 1, 'x.snappy.parquet')}"
        write(files, name, b"99\n")
        self.assertIn(
            "another program has written it",
            str(self.assertRaises(TableError, load, files, "third")),
        )
        files.remove(name)
        load(files, "third")
        self.assertWhole(files, 30)

    def test_numberIsTaken(self) -> None:
        """
        Where locks do not reach, of two runs from the same state one is committed; the other has
        left nothing.
        """
        load(self.files, "first")
        table = Table(PATH, self.files)
        with TableWriter(table) as writer:
            write(self.files, f"{writer.staging('other')}/x/y", b"99\n")
            error = self.assertRaises(TableBusyError, writer.commit, manifest(1, "other", added=()))
        self.assertIn("000000000001.json", str(error))
        self.assertWhole(self.files, 10)
        self.assertEqual(self.files.list(f"{PATH}/{STAGING}"), [])
        self.assertEqual(len(self.files.list(f"{PATH}/{MANIFESTS}")), 1)

    def test_unreadable(self) -> None:
        """
        A manifest that readers would refuse, for its size or for what is in it, is not committed;
        the error says why, and the table is as it was.
        """
        load(self.files, "first")
        large = len(manifest(2, "large").encode())
        for limit, bad, reason in (
            (large - 1, {}, f"it would have {large} bytes"),
            (large * 2, {"windowMs": 0}, "windows of 0 ms"),
        ):
            self.patch(commit, "MANIFEST_SIZE_MAX", limit)
            with TableWriter(Table(PATH, self.files)) as writer:
                write(self.files, f"{writer.staging('large')}/x/y", b"99\n")
                error = self.assertRaises(TableError, writer.commit, manifest(2, "large", **bad))
            self.assertIn(reason, str(error))
            self.assertWhole(self.files, 10)
            self.assertEqual(self.files.list(f"{PATH}/{STAGING}"), [])

    def test_linkFails(self) -> None:
        """
        A commit that fails is an error of the file, nothing is committed, and the next run does it
        all.
        """
        self.files.makeDirectories(PATH)
        self.files.fail("link", "000000000001.json", errno.EIO)
        error = self.assertRaises(StorageError, load, self.files, "first")
        self.assertEqual((error.action, error.errno), ("link", errno.EIO))
        self.assertEqual(Table(PATH, self.files).manifestCount(), 0)
        load(self.files, "second")
        self.assertWhole(self.files, 10)
        self.assertEqual(len(self.files.list(f"{PATH}/{MANIFESTS}")), 1)

    def test_publishingFails(self) -> None:
        """
        A run that was committed and could not be published says that and its number; it is seen
        whole, and the next run publishes it.
        """
        self.files.makeDirectories(PATH)
        self.files.fail("link", ".parquet", errno.ENOSPC)
        error = self.assertRaises(PostCommitError, load, self.files, "first")
        self.assertIn(
            "committed as run 1, but its files were not all published, which the next run does:"
            " cannot link",
            str(error),
        )
        self.assertEqual(rows(self.files), list(range(10)))
        self.assertEqual(plainRows(self.files), [])
        load(self.files, "second")
        self.assertWhole(self.files, 20)

    def test_cannotBeSwept(self) -> None:
        """What a dead run's task still writes is no trouble, and goes with a later run."""
        self.files.makeDirectories(PATH)
        write(self.files, f"{PATH}/{STAGING}/dead/a/b", b"1\n")
        self.files.fail("remove", "/b", errno.EBUSY)
        load(self.files, "first")
        self.assertEqual(self.files.list(f"{PATH}/{STAGING}"), ["dead.aside"])
        load(self.files, "second")
        self.assertEqual(self.files.list(f"{PATH}/{STAGING}"), [])
        self.assertWhole(self.files, 20)

    def test_stagedFileIsGone(self) -> None:
        """A committed file that is neither there nor staged stops the next run, which names it."""
        self.files.makeDirectories(PATH)
        self.files.fail("link", ".parquet", errno.EIO)
        self.assertRaises(PostCommitError, load, self.files, "first")
        self.files.remove(f"{PATH}/{STAGING}/first/{HOUR}0/part-0.snappy.parquet")
        error = self.assertRaises(TableError, load, self.files, "second")
        self.assertIn("run 1 has committed this file", str(error))
        again = self.assertRaises(TableError, load, self.files, "third")
        self.assertEqual(str(again), str(error))


class LockTests(TableCase):
    """One at a time."""

    def test_second(self) -> None:
        """
        A second run is told at once, and changes nothing; when the first has ended, or died, it
        may.
        """
        load(self.files, "first")
        with TableWriter(Table(PATH, self.files)):
            self.assertRaises(TableBusyError, load, self.files, "second")
        with TableWriter(Table(PATH, self.files)):
            self.files.kill()
        load(self.files, "third")
        self.assertWhole(self.files, 20)

    def test_letGoWhenRecoveryFails(self) -> None:
        """A table that cannot be opened is not locked."""
        load(self.files, "first")
        load(self.files, "second")
        self.files.remove(f"{PATH}/{MANIFESTS}/000000000001.json")
        error = self.assertRaises(TableError, load, self.files, "third")
        self.assertIn("000000000001.json: it is missing", str(error))
        self.files.lock(f"{PATH}/{LOCK}")()


class UnlockedTests(TableCase):
    """Where the lock does not reach, a run that lives is taken for a dead one."""

    def setUp(self) -> None:
        super().setUp()
        load(self.files, "first")

    def sweepAt(self, action: str, pathEnd: str) -> list[str]:
        """
        Let another run begin just before an operation of the next one.

        @return: gets how that run found the staging folder when it was done.
        """
        files = self.files
        left: list[str] = []
        real = getattr(files, action)

        def between(path: str, *more: Any, **named: Any) -> Any:
            if (more[0] if action == "link" else path).endswith(pathEnd) and not left:
                left.append("begun")
                with TableWriter(Table(PATH, Unlocked(files))):
                    left[:] = files.list(f"{PATH}/{STAGING}") or ["nothing"]
            return real(path, *more, **named)

        self.patch(files, action, between)
        return left

    def test_swept(self) -> None:
        """
        Whenever its files go before the commit, or the name that it commits with: the run fails,
        names what is gone, and says why; nothing is committed, and the next run loads what it would
        have.
        """
        moments = (
            ("status", "/part-1.snappy.parquet"),
            ("syncDirectory", f"{STAGING}/second"),
            ("open", "_next-second"),
            ("link", "000000000002.json"),
        )
        for action, pathEnd in moments:
            left = self.sweepAt(action, pathEnd)
            error = self.assertRaises(TableError, load, self.files, "second")
            self.assertEqual(left, ["nothing"], action)
            self.assertIn(
                "nothing was committed. Another run that writes to this table has taken this one"
                " for dead",
                str(error),
            )
            self.assertWhole(self.files, 10)
            self.assertEqual(sorted(self.files.list(f"{PATH}/{MANIFESTS}")), ["000000000001.json"])
        load(self.files, "third")
        self.assertWhole(self.files, 20)

    def test_otherSize(self) -> None:
        """A staged file of another size than the manifest says is not committed."""
        with TableWriter(Table(PATH, self.files)) as writer:
            write(self.files, f"{writer.staging('second')}/{HOUR}7/part-0.parquet", b"10\n")
            error = self.assertRaises(TableError, writer.commit, manifest(2, "second"))
        self.assertIn("it has 3 bytes, not 100", str(error))
        self.assertWhole(self.files, 10)

    def test_committedMeanwhile(self) -> None:
        """
        A run that commits while another is about to sweep its folder is published by that one.
        """
        write(self.files, f"{PATH}/{STAGING}/other/x/y", b"99\n")
        done: list[str] = []
        rename, link = self.files.rename, self.files.link

        def stop(_old: str, _new: str) -> None:
            raise PowerLostError("just before its commit")

        def overtaken(old: str, new: str) -> None:
            if old.endswith("/second") and not done:
                done.append(new)
                link(f"{PATH}/{MANIFESTS}/_next-second", f"{PATH}/{MANIFESTS}/000000000002.json")
            rename(old, new)

        self.patch(self.files, "link", stop)
        self.assertRaises(PowerLostError, load, self.files, "second")
        self.patch(self.files, "link", link)
        self.patch(self.files, "rename", overtaken)
        load(self.files, "third")
        self.assertEqual(len(done), 1)
        self.assertWhole(self.files, 30)

    def test_lostAnswer(self) -> None:
        """
        A link that was made and whose answer was lost, as a network file system may say, is a
        commit.
        """
        real = self.files.link

        def link(old: str, new: str) -> None:
            real(old, new)
            if new.endswith("000000000002.json"):
                real(old, new)

        self.patch(self.files, "link", link)
        load(self.files, "second")
        self.assertWhole(self.files, 20)

    def test_cannotBeMoved(self) -> None:
        """A leftover that cannot be moved aside stays, and is no trouble."""
        write(self.files, f"{PATH}/{STAGING}/dead/a/b", b"1\n")
        self.files.fail("rename", "/dead", errno.EACCES)
        load(self.files, "second")
        self.assertEqual(self.files.list(f"{PATH}/{STAGING}"), ["dead"])
        self.assertWhole(self.files, 20)

    def test_diesAside(self) -> None:
        """
        A run that was committed and moved aside by one that died there is published by the next.
        """
        self.files.fail("link", ".parquet", errno.EIO)
        self.assertRaises(PostCommitError, load, self.files, "second")
        self.files.rename(f"{PATH}/{STAGING}/second", f"{PATH}/{STAGING}/second.aside")
        load(self.files, "third")
        self.assertWhole(self.files, 30)


class Unlocked:
    """A machine's files, as another one sees them whose locks do not reach it."""

    def __init__(self, files: PowerCutFileSystem) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def lock(self, _path: str) -> Callable[[], None]:
        """Always free."""
        return lambda: None


class DeathTests(TableCase):
    """A run dies before each of its file operations, and another follows."""

    def deaths(
        self,
        act: Callable[[PowerCutFileSystem], None],
        after: Callable[[PowerCutFileSystem, Random | None], None],
        chances: int,
    ) -> int:
        """
        Let it die at each point, several times where chance plays a part.

        @return: how many points there were.
        """
        point = 0
        while True:
            for seed in range(chances):
                files = self.filled()
                files.cutAt = files.operationCount + point
                try:
                    act(files)
                except PowerLostError:
                    after(files, Random(seed) if seed else None)
                else:
                    return point
                try:
                    committed = Table(PATH, files).last()
                    assert committed is not NO_RUN
                    self.assertEqual(rows(files), list(range(committed.positions[PLACE])))
                    load(files, "again")
                except Exception as error:
                    raise AssertionError(
                        f"died at {point}, seed {seed}"
                    ) from error  # which of the hundreds it was
                self.assertWhole(files, committed.positions[PLACE] + 10)
            point += 1

    @staticmethod
    def kill(files: PowerCutFileSystem, _random: Random | None) -> None:
        files.kill()

    @staticmethod
    def cut(files: PowerCutFileSystem, random: Random | None) -> None:
        files.cutPower(random)

    def test_killedLoading(self) -> None:
        """C{kill -9} of a load: no row is lost or doubled, whatever reader looks."""
        self.assertGreater(self.deaths(lambda files: load(files, "dying"), self.kill, 1), 20)

    def test_killedCompacting(self) -> None:
        """C{kill -9} of a compaction: the rows stay as they are."""

        def act(files: PowerCutFileSystem) -> None:
            compact(files, "dying")

        self.assertGreater(self.deaths(act, self.kill, 1), 20)

    def test_powerCutLoading(self) -> None:
        """The same with the power cut, and what was not synced lost, or some of it."""
        self.assertGreater(
            self.deaths(lambda files: load(files, "dying"), self.cut, RANDOM_COUNT), 20
        )

    def test_powerCutCompacting(self) -> None:
        """A compaction that loses power loses no row and doubles none."""
        self.assertGreater(
            self.deaths(lambda files: compact(files, "dying"), self.cut, RANDOM_COUNT), 20
        )

    def test_nothingAdded(self) -> None:
        """
        A run that only takes files out loses them all or none, and its rows do not come back with
        the next one.
        """

        def act(files: PowerCutFileSystem) -> None:
            table = Table(PATH, files)
            with TableWriter(table) as writer:
                writer.commit(
                    manifest(
                        4,
                        "dying",
                        ranges=(),
                        positions={PLACE: 0},
                        added=(),
                        removed=tuple(table.published()),
                    )
                )

        self.assertGreater(self.deaths(act, self.cut, RANDOM_COUNT), 10)

    def test_diesTwice(self) -> None:
        """
        A kill behind the commit, and a power cut in the run that finishes it, wherever: the run is
        there once.
        """

        def act(files: PowerCutFileSystem) -> None:
            point, files.cutAt = files.cutAt, None
            files.fail("link", ".parquet", errno.EIO)
            self.assertRaises(PostCommitError, load, files, "unpublished")
            files.kill()
            assert point is not None
            files.cutAt = files.operationCount + point - started
            load(files, "dying")

        started = self.filled().operationCount
        self.assertGreater(self.deaths(act, self.cut, RANDOM_COUNT), 30)

    def test_withoutSyncs(self) -> None:
        """The test sees what it ought to see: without C{fsync}, rows are lost to a power cut."""
        files = self.filled()
        files.syncs = False
        load(files, "unsynced")
        files.cutPower()
        self.assertEqual(rows(files), list(range(20)))


class PathTests(SynchronousTestCase):
    """Where a table can be."""

    def test_paths(self) -> None:
        """Paths are taken, places that are reached by a protocol are refused."""
        self.assertEqual(
            [localPath(each) for each in ("/data/clicks/", "clicks", "/", "../a:b")],
            ["/data/clicks", "clicks", "/", "../a:b"],
        )
        for text in ("s3a://bucket/table", "hdfs://name/table", "file:/data/table", ""):
            self.assertIn(
                "local or mounted file system", str(self.assertRaises(TableError, localPath, text))
            )
        for sign in "{}[]*?\\":
            self.assertIn(
                f"the path contains {sign}",
                str(self.assertRaises(TableError, localPath, f"/data/click{sign}s/x")),
            )

    def test_patternAbove(self) -> None:
        """A folder below one that Spark takes for a pattern is refused, too, by whatever name."""
        folder = os.path.abspath(self.mktemp()) + "[1]"
        os.makedirs(folder)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder)
        self.assertIn(
            "the path contains [ ]", str(self.assertRaises(TableError, localPath, "table"))
        )


class CheckingTests(SynchronousTestCase):
    """Before a commit."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem()
        self.table = Table(PATH, self.files)
        [added] = manifest(2).added
        self.manifest = replace(manifest(2), added=(added._replace(size=3),))
        self.staged = f"{PATH}/_staging/run2/{added.staged}"

    def test_staged(self) -> None:
        """Each file is there, with its size; one that is gone, or has another one, is named."""
        self.assertIn(
            f"{self.staged}: it is gone",
            str(self.assertRaises(TableError, checkStaged, self.table, self.manifest)),
        )
        write(self.files, self.staged, b"1234")
        self.assertIn(
            "it has 4 bytes, not 3",
            str(self.assertRaises(TableError, checkStaged, self.table, self.manifest)),
        )
        self.files.remove(self.staged)
        write(self.files, self.staged, b"123")
        checkStaged(self.table, self.manifest)

    def test_names(self) -> None:
        """
        Files of earlier runs and of other programs may be beside the new ones; those of this run or
        a later one may not.
        """
        checkNames(self.table, self.manifest)
        for name in (fileName(1, 0, "x.parquet"), "theirs.parquet"):
            write(self.files, f"{PATH}/{HOUR}7/{name}", b"x")
        checkNames(self.table, self.manifest)
        for number in (2, 5):
            name = f"{PATH}/{HOUR}7/{fileName(number, 3, 'x.parquet')}"
            write(self.files, name, b"x")
            self.assertIn(
                f"{name}: no manifest knows its run",
                str(self.assertRaises(TableError, checkNames, self.table, self.manifest)),
            )
            self.files.remove(name)
