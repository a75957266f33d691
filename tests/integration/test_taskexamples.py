"""
The jobs of C{docs/examples/tasks}: with the test driver, and in containers on a broker in the
process. Counts equal those of a C{Counter} over the same lines.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.tasks.container import TaskContainer
from pylogbroker.tasks.job import Job, loadJobs
from pylogbroker.tasks.streams import Windowed
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.tasktestdriver import TaskTestDriver
from tests.tasks.jobs import lastValues, publish, readAll

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "docs" / "examples" / "tasks"
LINES = (ROOT / "LICENSE").read_text(encoding="utf-8").splitlines()
TRUTH = Counter(word for line in LINES for word in line.split())
ALL_WORDS = {"trending.words": str(len(TRUTH))}
PARTITIONS = 3


def jobs() -> tuple[Job, Job, Job]:
    """The three jobs, as their files have them."""
    words = loadJobs(str(EXAMPLES / "wordcount.py"))
    trends = loadJobs(str(EXAMPLES / "trendingwords.py"))
    return words["split-words"], words["count-words"], trends["trending-words"]


def sumOf(trends: Iterable[list[list[Any]]]) -> dict[str, int]:
    """How much words have grown in all lists together."""
    found: Counter[str] = Counter()
    for each in trends:
        found.update(dict(each))
    return dict(found)


class DriverTests(SynchronousTestCase):
    """The jobs without a broker, one behind the other."""

    def test_wordCount(self) -> None:
        """Lines become words, words become counts; the changelog has the count of each word."""
        splitWords, countWords, _ = jobs()
        splitting, counting = TaskTestDriver(splitWords, 1), TaskTestDriver(countWords, PARTITIONS)
        for line in LINES:
            splitting.pipeInput("lines", None, line)
        words = splitting.readOutput("words")
        self.assertEqual(words, [(word, 1) for line in LINES for word in line.split()])
        for word, one in words:
            counting.pipeInput("words", word, one)
        stores = [counting.getStore("word-counts", number) for number in range(PARTITIONS)]
        self.assertEqual(dict(entry for store in stores for entry in store.all()), TRUTH)
        counting.commit()
        self.assertEqual(dict(counting.readOutput("word-counts")), TRUTH)

    def test_trendingWords(self) -> None:
        """
        Each minute has the words that have grown most in it, and those only; a count that comes
        again has not grown.
        """
        job = jobs()[2]
        with TaskTestDriver(job) as driver:
            for word, count in (("a", 3), ("b", 5), ("a", 3), ("c", 1), ("b", 6)):
                driver.pipeInput("word-counts", word, count)
            driver.advanceWallClockTime(60_000)
            self.assertEqual(
                driver.readOutput("trending-words"), [("0", [["b", 6], ["a", 3], ["c", 1]])]
            )
            driver.pipeInput("word-counts", "a", 4)
            driver.pipeInput("word-counts", "b", 6)
            driver.pipeInput("word-counts", "c", None)
            driver.advanceWallClockTime(60_000)
            self.assertEqual(driver.readOutput("trending-words"), [("0", [["a", 1]])])
            driver.advanceWallClockTime(600_000)
            self.assertEqual(driver.readOutput("trending-words"), [])
            self.assertEqual(dict(driver.getStore("growths").all()), {})

    def test_ten(self) -> None:
        """The list has ten words, in the order of their growth and then of the alphabet."""
        with TaskTestDriver(jobs()[2]) as driver:
            for word, count in TRUTH.items():
                driver.pipeInput("word-counts", word, count)
            driver.advanceWallClockTime(60_000)
            [(_, trends)] = driver.readOutput("trending-words")
        wanted = sorted(TRUTH.items(), key=lambda entry: (-entry[1], entry[0]))[:10]
        self.assertEqual([tuple(each) for each in trends], wanted)


class PageTests(SynchronousTestCase):
    """What C{docs/tasks.md} shows."""

    def test_code(self) -> None:
        """It has the word count as it is in its file, and a test of it that runs."""
        page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        example = (EXAMPLES / "wordcount.py").read_text(encoding="utf-8")
        shown = example.split('"""')[2].lstrip()
        self.assertEqual(blocks[0], shown)
        [test] = [each for each in blocks if "TaskTestDriver(" in each]
        names = {"countWords": jobs()[1], "TaskTestDriver": TaskTestDriver}
        exec(test, names)
        with self.assertRaises(AssertionError):
            exec(test.replace('[("be", 2)]', '[("be", 3)]'), names)


LOG = """\
Dec 10 06:55:46 LabSZ sshd[24200]: Invalid user webmaster from 173.234.31.186
Dec 10 06:55:48 LabSZ sshd[24200]: Failed password for invalid user webmaster from 173.234.31.186 \
port 38926 ssh2
Dec 10 06:55:49 LabSZ sshd[24201]: Invalid user test9 from 52.80.34.196
no time, and Failed password for root from 52.80.34.196 port 1 ssh2
Dec 10 07:05:48 LabSZ sshd[24202]: Failed password for root from 173.234.31.186 port 39257 ssh2
Dec 10 07:02:00 LabSZ sshd[24203]: Failed password for root from 173.234.31.186 port 39258 ssh2
Dec 10 07:20:00 LabSZ sshd[24204]: Connection closed by 212.47.254.145 [preauth]
Dec 10 07:21:00 LabSZ sshd[24205]: Failed password for git from 173.234.31.186 port 39300 ssh2
Dec 10 08:00:00 LabSZ sshd[24206]: Failed password for git from 212.47.254.145 port 40000 ssh2
Dec 10 08:01:30 LabSZ sshd[24207]: Invalid user chen from 202.100.179.208
""".splitlines()
ACCOUNTS = [("root", {"owner": "ops"}), ("git", {"owner": "dev"}), ("git", None)]
NIGHT = 1_765_349_700_000 - 360_000
"""10 December 2025, 06:49 UTC, in milliseconds since the epoch."""


def session(address: str, start: int, last: int, attempts: int, *users: str) -> tuple[str, Any]:
    """
    A session of an attacker.

    @param start: seconds behind L{NIGHT}.
    """
    times = {"startMs": NIGHT + start * 1000, "endMs": NIGHT + last * 1000 + 600_000}
    return address, {**times, "attempts": attempts, "users": [*users]}


STREAM_EXAMPLES = {
    "sshattackers": [
        session("173.234.31.186", 408, 1008, 3, "root", "webmaster"),
        session("173.234.31.186", 1920, 1920, 1, "git"),
    ],
    "accountattacks": [
        (user, {"address": address, "owner": owner})
        for user, address, owner in (
            ("webmaster", "173.234.31.186", None),
            ("root", "52.80.34.196", "ops"),
            ("root", "173.234.31.186", "ops"),
            ("root", "173.234.31.186", "ops"),
            ("git", "173.234.31.186", None),
            ("git", "212.47.254.145", None),
        )
    ],
    "sshfunnel": [
        (key, {"user": user, "address": address, "triedPassword": isTried})
        for key, user, address, isTried in (
            ("24200", "webmaster", "173.234.31.186", True),
            ("24201", "test9", "52.80.34.196", False),
        )
    ],
}
"""What each example of the high-level API makes of L{LOG}."""


def streamJob(name: str) -> Job:
    """The job of a file."""
    [job] = loadJobs(str(EXAMPLES / f"{name}.py")).values()
    return job


class StreamDriverTests(SynchronousTestCase):
    """The examples of the high-level API without a broker."""

    def test_log(self) -> None:
        """Sessions of attackers, the owners of attacked accounts, a funnel."""
        for name, wanted in STREAM_EXAMPLES.items():
            job = streamJob(name)
            with TaskTestDriver(job) as driver:
                if name == "accountattacks":
                    for user, account in ACCOUNTS:
                        driver.pipeInput("accounts", user, account)
                for line in LOG:
                    driver.pipeInput("ssh-log", None, line)
                self.assertEqual(driver.readOutput(job.outputs[0].topic), wanted)

    def test_page(self) -> None:
        """What C{docs/streams.md} shows runs."""
        page = (ROOT / "docs" / "streams.md").read_text(encoding="utf-8")
        example, test = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        names: dict[str, Any] = {"TaskTestDriver": TaskTestDriver, "Windowed": Windowed}
        exec(example, names)
        exec(test, names)
        with self.assertRaises(AssertionError):
            exec(test.replace("60_000), 2)", "60_000), 3)"), names)


class StreamContainerTests(TestCase):
    """The examples of the high-level API in containers, with RocksDB."""

    timeout = 60

    def setUp(self) -> Deferred[None]:  # type: ignore[override]
        self.broker = LocalBroker(reactor, {"num.partitions": "1"})
        self.addCleanup(self.broker.stop)
        return self.broker.start()

    def test_log(self) -> Deferred[None]:
        """They send what they send to the test driver."""
        return Deferred.fromCoroutine(self._runAll([LOG]))

    def test_restarted(self) -> Deferred[None]:
        """So they do when they end and begin again behind each line, with exactly once."""
        lines = [[line] for line in LOG]
        return Deferred.fromCoroutine(
            self._runAll(lines, {"processing.guarantee": "exactly_once_v2"})
        )

    async def _runAll(
        self, parts: Sequence[Sequence[str]], settings: Mapping[str, str] | None = None
    ) -> None:
        servers = self.broker.bootstrapServers
        accounts = [
            (user, None if account is None else json.dumps(account).encode())
            for user, account in ACCOUNTS
        ]
        given = {
            "bootstrap.servers": servers,
            "state.dir": os.path.abspath(self.mktemp()),
            **(settings or {}),
        }
        await publish(reactor, servers, "accounts", accounts)
        for lines in parts:
            await publish(reactor, servers, "ssh-log", [(None, line.encode()) for line in lines])
            for name in STREAM_EXAMPLES:
                container = TaskContainer(reactor, streamJob(name), given, isUntilEnd=True)
                self.addCleanup(container.stop)
                await container.run()
        for name, wanted in STREAM_EXAMPLES.items():
            topic = streamJob(name).outputs[0].topic
            found = [
                ((each.key or b"").decode(), json.loads(each.value or b""))
                for each in await readAll(reactor, servers, topic)
            ]
            self.assertEqual(found, wanted)


class ContainerTests(TestCase):
    """The jobs in containers, with RocksDB."""

    timeout = 60

    def setUp(self) -> Deferred[None]:  # type: ignore[override]
        self.broker = LocalBroker(reactor, {"num.partitions": str(PARTITIONS)})
        self.addCleanup(self.broker.stop)
        self.stateDir = os.path.abspath(self.mktemp())
        return self.broker.start()

    def container(self, job: Job, **options: Any) -> TaskContainer:
        """A container of a job."""
        settings = {
            "bootstrap.servers": self.broker.bootstrapServers,
            "state.dir": self.stateDir,
        }
        made = TaskContainer(reactor, job, settings, **options)
        self.addCleanup(made.stop)
        return made

    def test_threeJobs(self) -> Deferred[None]:
        """
        The first two run to the end of their inputs; the third reads the changelog, and what it
        says has grown is what there is.
        """
        return Deferred.fromCoroutine(self._runThreeJobs())

    def test_command(self) -> Deferred[None]:
        """The command that the example names runs it, here to the end of what there is."""
        return Deferred.fromCoroutine(self._runCommand())

    async def _runCommand(self) -> None:
        servers = self.broker.bootstrapServers
        await publish(reactor, servers, "lines", [(None, line.encode()) for line in LINES])
        command = ["-m", "pylogbroker", "task", "run", str(EXAMPLES / "wordcount.py")]
        command += ["--bootstrap-server", servers, "--until-end", "--state-dir", self.stateDir]
        for name in ("split-words", "count-words"):
            output, errors, code = await getProcessOutputAndValue(
                sys.executable, [*command, "--job", name], env=os.environ, path=str(ROOT)
            )
            self.assertEqual(code, 0, output + errors)
        self.assertEqual(lastValues(await readAll(reactor, servers, "word-counts")), TRUTH)

    async def _runThreeJobs(self) -> None:
        splitWords, countWords, trendingWords = jobs()
        servers = self.broker.bootstrapServers
        await publish(reactor, servers, "lines", [(None, line.encode()) for line in LINES])
        for job in (splitWords, countWords):
            await self.container(job, isUntilEnd=True).run()
        self.assertEqual(lastValues(await readAll(reactor, servers, "word-counts")), TRUTH)
        quick = replace(trendingWords, windowMs=100, config=ALL_WORDS)
        container = self.container(quick)
        ended = container.run()
        grown: dict[str, int] = {}
        while sum(grown.values()) < TRUTH.total():
            await deferLater(reactor, 0.05)
            if container.status() and all(each.phase == "running" for each in container.status()):
                records = await readAll(reactor, servers, "trending-words")
                grown = sumOf(json.loads(each.value or b"") for each in records)
        self.assertEqual(grown, TRUTH)
        await container.stop()
        await ended
