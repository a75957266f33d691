"""Tests for L{pylogbroker.cli.commands.demo}."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli import CommandError
from pylogbroker.cli.commands import demo
from pylogbroker.cli.commands.demo import findLog, nextSteps, rates, readFile
from pylogbroker.cli.commands.dev import program, shortest
from pylogbroker.config.brokersettings import samplePath
from pylogbroker.config.properties import readProperties
from tests.cli.commands import CommandCase, Outcome

# What makes the sample configuration show messages soon, so that no test waits for its second.
SOON = (
    "--set",
    "log.default.flush.scheduler.interval.ms=20",
    "--set",
    "log.default.flush.interval.ms=1",
)


class DemoTests(CommandCase):
    """A broker, a file, and back."""

    def setUp(self) -> None:
        folder = self.mktemp()
        os.makedirs(folder)
        self.patch(tempfile, "tempdir", os.path.abspath(folder))
        self.folder = folder

    async def demo(self, *arguments: str) -> Outcome:
        result = await self.perform("demo", *SOON, *arguments)
        self.assertEqual(os.listdir(self.folder), [], "data was left behind")
        return result

    def rows(self, result: Outcome) -> dict[str, str]:
        """The rows of a demo that worked, by their names; of two with the same name, the last."""
        self.assertEqual((result.code, result.errors), (0, ""))
        head, _, tail = result.output.decode().partition("Go on from here")
        self.tail = tail
        return {line[:11].strip(): line[11:] for line in head.splitlines()[2:] if line}

    async def test_rows(self) -> None:
        """It says what was published, read back and compared, and how to go on."""
        path = self.write(b"one\ntwo\n" * 500, "some.log")
        rows = self.rows(await self.demo(path))
        self.assertEqual(list(rows), ["broker", "file", "published", "read back", "compared"])
        self.assertEqual(rows["file"], f"{path}: 4.0 kB")
        self.assertRegex(
            rows["published"],
            r"^1,000 messages in 0\.\d{3} s: [\d,]+ messages/s, [\d.]+ [kM]B/s, in 5 requests$",
        )
        self.assertRegex(
            rows["read back"],
            r"^1,000 messages in .*/s, after \d+\.\d\d s of waiting for the flush$",
        )
        self.assertEqual(rows["compared"], "4,000 bytes: what came back is the file, byte for byte")
        self.assertIn(f"pylogbroker produce {path} --topic demo", self.tail)

    async def test_anyBytes(self) -> None:
        """
        A file comes back exactly whatever stands in it: no line feed at the end, CRLF, NUL bytes,
        bytes that are not UTF-8, empty lines.
        """
        for data in (
            b"a",
            b"a\n",
            b"\n",
            b"\n\na",
            b"a\r\nb\r\n",
            b"\x00\n\x00",
            b"\xff\xfe\n\xc3",
            b"a\n\n\n",
            b"\r\n\r",
            os.urandom(5000),
        ):
            rows = self.rows(await self.demo(self.write(data)))
            self.assertIn("byte for byte", rows["compared"])

    async def test_loghub(self) -> None:
        """A file of many fetches comes back, compressed or not."""
        data = b"".join(
            b"%d %s\n" % (index, os.urandom(20).hex().encode()) for index in range(20_000)
        )
        path = self.write(data)
        self.patch(demo, "FETCH_SIZE", 100_000)
        for codec in ("none", "gzip", "snappy"):
            rows = self.rows(await self.demo(path, "--compression", codec, "--batch-size", "1000"))
            self.assertIn(f"{len(data):,} bytes", rows["compared"])

    async def test_aPartOfALargeFile(self) -> None:
        """Of a very large file the lines at its beginning are used."""
        self.patch(demo, "SIZE_MAX", 10)
        self.patch(readFile, "__defaults__", (10,))
        rows = self.rows(await self.demo(self.write(b"123456\n123456\n")))
        self.assertTrue(rows["file"].endswith("7 B, the first of more than 10 B"), rows["file"])
        self.assertIn("7 bytes", rows["compared"])

    async def test_port(self) -> None:
        """It listens where it is told; a port that is taken is an error."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = await self.demo(self.write(b"a\n"), "--port", str(port))
            self.assertEqual(result.code, 1)
            self.assertIn(str(port), result.errors)
        rows = self.rows(await self.demo(self.write(b"a\n"), "--port", str(port)))
        self.assertIn("removed", rows["broker"])

    async def test_config(self) -> None:
        """
        The configuration can be given, and is named; a key that comes twice is said, what is wrong
        ends the demo.
        """
        config = self.write(
            b"brokerid=0\nlog.dir=x\nenable.zookeeper=false\nlog.flush.interval=1\nlisteners=tcp:1\nbrokerid=1\n"
        )
        result = await self.demo("--config", config, self.write(b"a\n"))
        self.assertEqual(result.code, 0)
        self.assertIn(f", configured by {config}, data in ", result.output.decode())
        self.assertEqual(
            result.errors,
            f"pylogbroker: {config}:6: brokerid was set before ({config}:1); this line counts\n",
        )
        result = await self.demo("--set", "num.partitions=none", self.write(b"a\n"))
        self.assertEqual((result.code, "num.partitions=none" in result.errors), (1, True))
        result = await self.demo(
            "--set", "enable.zookeeper=true", "--set", "zk.connect=127.0.0.1:1", self.write(b"a\n")
        )
        self.assertEqual(result.code, 0)  # a demo registers nowhere

    async def test_overlong(self) -> None:
        """
        A file with a line that the broker would not take is an error with its number, also when it
        is too large only once it is compressed.
        """
        for data, codec in (
            (b"a\n" + b"x" * 101 + b"\n", "none"),
            (b"a\n" + os.urandom(100).replace(b"\n", b""), "gzip"),
        ):
            result = await self.demo(
                self.write(data), "--set", "max.message.size=100", "--compression", codec
            )
            self.assertEqual(result.code, 1)
            self.assertRegex(
                result.errors,
                "^pylogbroker: line 2 of .* is too long for a message of 100 bytes: .*; try another"
                " file\n$",
            )

    async def test_noTemporaryDirectory(self) -> None:
        """Without a place for its data there is no demo."""
        self.patch(tempfile, "tempdir", os.path.join(self.folder, "none"))
        self.assertEqual(
            await self.demo(self.write(b"a")),
            Outcome(
                1,
                b"",
                "pylogbroker: cannot make a temporary directory: No such file or directory\n",
            ),
        )

    async def test_brokenPipe(self) -> None:
        """When nobody reads what it shows, that is a quiet end, and nothing is left behind."""
        source, sink = os.pipe()
        os.close(source)
        self.addCleanup(os.close, sink)
        self.assertEqual(
            await self.perform("demo", *SOON, self.write(b"a"), output=sink), Outcome(0, b"", "")
        )
        self.assertEqual(os.listdir(self.folder), [])

    async def test_neverVisible(self) -> None:
        """A broker that does not flush in the time that it was told is an error."""
        self.patch(demo, "FLUSH_MS_MAX", -100_000)
        result = await self.perform("demo", self.write(b"a\n"))
        self.assertEqual(result.code, 1)
        self.assertNotIn("read back", result.output.decode())

    async def test_difference(self) -> None:
        """
        When something else comes back, the exit code is 1 and the first byte that differs is named.
        """
        path = self.write(b"one\ntwo\n")
        original = demo._Demo._readBack

        async def spoiled(show: demo._Demo, count: int) -> list[bytes]:
            return [payload.replace(b"w", b"W") for payload in await original(show, count)]

        self.patch(demo._Demo, "_readBack", spoiled)
        result = await self.demo(path)
        self.assertEqual(
            (result.code, result.errors),
            (1, f"pylogbroker: what came back differs from {path} at byte 5\n"),
        )


class FileTests(SynchronousTestCase):
    """Files to show it with."""

    def folder(self, **files: bytes) -> str:
        folder = self.mktemp()
        for name, data in files.items():
            path = os.path.join(folder, name.replace("__", "/").replace("_", "."))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
        return folder

    def test_largestOfTheWellKnown(self) -> None:
        """Of the logs that every system has, the largest is taken, whatever else is there."""
        folder = self.folder(
            dpkg_log=b"12", apt__history_log=b"123", alternatives_log=b"", other_log=b"12345"
        )
        self.assertEqual(findLog(folder), os.path.join(folder, "apt/history.log"))

    def test_others(self) -> None:
        """Without them, the largest of the other logs is."""
        folder = self.folder(deep__er__a_log=b"12", b_log=b"1", c_txt=b"12345")
        self.assertEqual(findLog(folder), os.path.join(folder, "deep/er/a.log"))

    def test_none(self) -> None:
        """Without any, a file has to be given."""
        folder = self.folder(dpkg_log=b"", c_txt=b"1")
        os.mkdir(os.path.join(folder, "d.log"))
        os.symlink("nowhere", os.path.join(folder, "e.log"))
        error = self.assertRaises(CommandError, findLog, folder)
        self.assertIn("give one", str(error))

    def test_read(self) -> None:
        """
        A file up to the limit is read whole; of a larger one, the lines that end within it; or,
        where none does, what there is.
        """
        for data, found in (
            (b"12\n45", (b"12\n45", True)),
            (b"12\n456", (b"12\n", False)),
            (b"123\n\n6", (b"123\n\n", False)),
            (b"123456", (b"12345", False)),
        ):
            folder = self.folder(a=data)
            self.assertEqual(readFile(os.path.join(folder, "a"), 5), found)

    def test_unreadable(self) -> None:
        """What is not there, is empty, or is no file is an error that names it."""
        folder = self.folder(empty=b"")
        os.mkfifo(os.path.join(folder, "pipe"))
        for name, reason in (
            ("none", "No such file or directory"),
            ("empty", "is empty: give another file"),
            ("pipe", "is not a regular file"),
            ("", "Is a directory"),
            ("\0", "null byte"),
        ):
            error = self.assertRaises(CommandError, readFile, os.path.join(folder, name))
            self.assertIn(reason, str(error))


class GoOnTests(SynchronousTestCase):
    """Commands to go on with."""

    def nextSteps(
        self,
        isEnded: bool = True,
        changes: tuple[str, ...] = (),
        path: str = "/var/log/dpkg.log",
        count: int | None = 2856,
    ) -> list[str]:
        return nextSteps(
            path,
            count,
            isEnded,
            "/some/broker.properties",
            readProperties(str(samplePath())).withOverrides(changes),
            changes,
        )

    def test_lines(self) -> None:
        """
        They start a broker, publish, read and compare, and look into its files, with the addresses
        of the configuration.
        """
        lines = [line.split(" ", 1)[1] for line in self.nextSteps()]
        self.assertEqual(
            lines,
            [
                "-n pylogbroker --config /some/broker.properties    # in another terminal",
                "produce /var/log/dpkg.log --topic demo",
                (
                    "consume --topic demo --from-beginning --follow --max-messages 2856"
                    " | cmp - /var/log/dpkg.log && echo identical"
                ),
                "offset list --topic demo",
                (
                    "dump --no-print /tmp/pylogbroker-logs/demo-0/00000000000000000000.kafka | tail"
                    " -n 3"
                ),
            ],
        )

    def test_withoutLastLineFeed(self) -> None:
        """
        A file without a line feed at its end is not what C{consume} prints, and not compared with
        it.
        """
        self.assertTrue(self.nextSteps(isEnded=False)[2].endswith("--max-messages 2856 | tail"))

    def test_partOfAFile(self) -> None:
        """C{consume} waits for no number of messages if only a part of the file was counted."""
        self.assertTrue(
            self.nextSteps(isEnded=False, count=None)[2].endswith("--from-beginning | tail")
        )

    def test_otherAddress(self) -> None:
        """
        Another address is given to each command, and to the broker; so are names that a shell would
        take apart.
        """
        lines = self.nextSteps(changes=("port=1234", "listen.interface=::1"), path="/a b")
        self.assertIn("--set port=1234 --set listen.interface=::1", lines[0])
        self.assertIn("produce '/a b' --broker [::1]:1234 --topic demo", lines[1])
        self.assertEqual(
            self.nextSteps(changes=("listen.interface=",))[3],
            self.nextSteps()[3],
            "all addresses are as good as loopback",
        )

    def test_program(self) -> None:
        """
        A program is called by its name where the shell would find the same, and else by its path.
        """
        beside = os.path.dirname(sys.executable)
        self.patch(os, "environ", {"PATH": beside})
        self.assertEqual(program("python3"), "python3")
        self.assertEqual(program("no-such-program"), "no-such-program")
        self.patch(os, "environ", {"PATH": "/nonexistent"})
        self.assertEqual(program("python3"), shortest(os.path.join(beside, "python3")))
        self.assertIs(shutil.which("python3"), None)

    def test_shortest(self) -> None:
        """A path is given as one would type it here."""
        self.assertEqual(shortest(os.path.join(os.getcwd(), "a", "b")), "a/b")
        self.assertEqual(shortest("/a"), "/a")

    def test_rates(self) -> None:
        """What took no time that could be measured has a rate, too."""
        self.assertEqual(
            rates(1000, 2_000_000, 0.5), "1,000 messages in 0.500 s: 2,000 messages/s, 4.0 MB/s"
        )
        self.assertIn("1,000,000 messages/s", rates(1, 1, 0))
