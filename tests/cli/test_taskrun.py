"""
Tests for C{task run}, on a real broker: in this process, and as processes, of which one is killed.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from contextlib import redirect_stderr
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater

from pylogbroker.cli.commands.task import progress as module
from pylogbroker.cli.commands.task.progress import TaskProgress
from pylogbroker.cli.main import CANCELLED, prepare, runCommand
from pylogbroker.cli.streams import Streams
from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import LATEST, NewTopic
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import ConfigurationError
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.programs.tasks.report import ContainerReport
from pylogbroker.tasks.serdes import LONG
from pylogbroker.types import TopicPartition
from tests.cli.commands import CommandCase, Outcome, reactor
from tests.cli.taskjobs import COPY, COUNT, TALLY
from tests.tasks.jobs import readAll

REPORT = re.compile(r"--report-to\0003\0")


class TaskCase(CommandCase):
    """A broker with the topic C{words}, of two partitions, and job files."""

    async def setUp(self) -> None:  # type: ignore[override]
        # Members and transactions of processes that died are soon missed.
        key = "transaction_abort_timed_out_transaction_cleanup_interval_ms"
        await self.startBroker(**{key: "100", "group_min_session_timeout_ms": "500"})
        self.servers = {"bootstrap.servers": self.broker.bootstrapServers}
        admin = AdminClient(reactor, self.servers)
        await admin.createTopics([NewTopic("words", 2, 1, {})])
        await admin.close()
        self.file = self.write(COUNT.encode(), "job.py")

    async def send(self, *words: str, partition: int = 0) -> None:
        producer = KafkaProducer(reactor, self.servers)
        for word in words:
            await producer.send("words", word.encode(), None, (), None, partition)
        await producer.close()

    def words(self, *more: str) -> tuple[str, ...]:
        """The arguments of C{task run}."""
        place = ("--bootstrap-server", self.broker.bootstrapServers)
        state = ("--state-dir", os.path.abspath(self.mktemp()))
        return ("task", "run", self.file, *place, *state, *more)

    async def run_(self, *more: str) -> Outcome:
        return await self.perform(*self.words(*more))

    async def ends(self, topic: str, isCommitted: bool) -> dict[TopicPartition, int]:
        """Where the partitions of a topic end; with C{isCommitted} in front of what is open."""
        places = {TopicPartition(topic, number): LATEST for number in range(2)}
        admin = AdminClient(reactor, self.servers)
        found = checkAll(await admin.listOffsets(places, isCommitted=isCommitted))
        await admin.close()
        return {place: each.offset for place, each in found.items()}

    async def content(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of all messages of a topic that has two partitions."""
        consumer = KafkaConsumer(reactor, {**self.servers, "auto.offset.reset": "earliest"})
        ends = await consumer.endOffsets([(topic, 0), (topic, 1)])  # type: ignore[list-item]
        consumer.assign(dict.fromkeys(ends, 0))
        found: list[tuple[bytes | None, bytes | None]] = []
        while len(found) < sum(ends.values()):
            records = consumer.takeMany(1_000)
            found += [(each.key, each.value) for each in records]
            if not records:
                await consumer.wait()
        await consumer.close()
        return found


class HereTests(TaskCase):
    """One container, in the command's own process."""

    async def test_untilEnd(self) -> None:
        """
        It handles what there is, commits, and ends with 0; a second run has nothing to do. The
        counts are in the changelog.
        """
        await self.send("a", "b", "a")
        await self.send("a", partition=1)
        outcome = await self.run_("--until-end")
        self.assertEqual((outcome.code, outcome.errors.splitlines()[-1]), (0, "4 messages handled"))
        self.assertIn("job count", outcome.errors)
        found = await self.content("count-counts-changelog")
        self.assertEqual(
            sorted(found),
            [(b"a", b"%b" % (number).to_bytes(8, "big")) for number in (1, 2)]
            + [(b"b", (1).to_bytes(8, "big"))],
        )
        outcome = await self.run_("--until-end")
        self.assertEqual((outcome.code, outcome.errors.splitlines()[-1]), (0, "0 messages handled"))

    async def test_otherName(self) -> None:
        """With C{--as} a job reads all anew, and writes topics of its own."""
        await self.send("a")
        await self.run_("--until-end")
        outcome = await self.run_("--as", "new", "--until-end")
        self.assertEqual((outcome.code, outcome.errors.splitlines()[-1]), (0, "1 message handled"))
        one = [(b"a", (1).to_bytes(8, "big"))]
        self.assertEqual(await self.content("new-counts-changelog"), one)
        self.assertEqual(await self.content("count-counts-changelog"), one)

    async def test_severalJobs(self) -> None:
        """All jobs of a file run, each in a container, unless one is named."""
        self.file = self.write((COUNT + COPY).encode(), "jobs.py")
        await self.send("a", "b")
        outcome = await self.run_("--until-end")
        self.assertEqual((outcome.code, outcome.errors.splitlines()[-1]), (0, "4 messages handled"))
        self.assertEqual(await self.content("copied"), [(None, b"a"), (None, b"b")])
        outcome = await self.run_("--until-end", "--job", "count", "--as", "x")
        self.assertEqual((outcome.code, outcome.errors.splitlines()[-1]), (0, "2 messages handled"))

    async def test_failure(self) -> None:
        """
        A message that its task cannot handle ends all, with 1, the place of the message, and the
        line of the job's code. What came before is committed.
        """
        self.file = self.write((COUNT + COPY).encode(), "jobs.py")
        await self.send("a", "bad", "b")
        outcome = await self.run_()
        self.assertEqual(outcome.code, 1)
        self.assertIn("task count-0 failed at offset 1 of partition 0 of words", outcome.errors)
        self.assertIn('raise ValueError("that is a bad word")', outcome.errors)
        outcome = await self.run_("--until-end", "--job", "count")
        self.assertIn("failed at offset 1 of partition 0", outcome.errors)
        self.assertIn("\n0 messages handled", outcome.errors)

    async def test_shutdown(self) -> None:
        """A task may end its container; that is no failure."""
        await self.send("a", "end")
        outcome = await self.run_()
        self.assertEqual(outcome.code, 0, outcome.errors)

    async def test_cancelled(self) -> None:
        """A signal ends it in order, when it has committed."""
        await self.send("a")
        errors = io.StringIO()
        streams = Streams(-1, -1, errors, reactor)
        self.patch(module, "RARE_SECONDS", 0.05)
        running = Deferred.fromCoroutine(runCommand(prepare(self.words(), streams), streams))
        while "1 message handled" not in errors.getvalue():
            await deferLater(reactor, 0.01)
            self.assertFalse(running.called, errors.getvalue())
        running.cancel()
        self.assertEqual(await running, CANCELLED)
        self.assertEqual(errors.getvalue().splitlines()[-1], "1 message handled")
        outcome = await self.run_("--until-end")
        self.assertEqual(outcome.errors.splitlines()[-1], "0 messages handled")

    async def test_noBroker(self) -> None:
        """A signal ends it while no broker can be reached, too."""
        errors = io.StringIO()
        streams = Streams(-1, -1, errors, reactor)
        words = ("task", "run", self.file, "--bootstrap-server", "127.0.0.1:1")
        started = reactor.seconds()
        running = Deferred.fromCoroutine(runCommand(prepare(words, streams), streams))
        await deferLater(reactor, 0.1)
        running.cancel()
        self.assertEqual(await running, CANCELLED)
        self.assertLess(reactor.seconds() - started, 20)

    async def test_settings(self) -> None:
        """Settings come from the file, and from C{--set}; a wrong one is an error."""
        config = self.write(b"bootstrap.servers=127.0.0.1:1\nbatch=1\ncommit.interval.ms=7\n")
        errors = io.StringIO()
        streams = Streams(-1, -1, errors, reactor)
        options = prepare(
            self.words("--config", config, "--set", "max.poll.records=9", "--until-end"), streams
        )
        settings = options.taskSettings
        self.assertEqual(settings.bootstrapServers, (self.broker.bootstrapServers,))
        self.assertEqual((settings.commitIntervalMs, settings.maxPollRecords), (7, 9))
        self.assertIn("batch", errors.getvalue())
        self.assertEqual((options.follow, [each.name for each in options.jobs]), (False, ["count"]))
        for words, reason in (
            (("--set", "max.poll.records=x"), "max.poll.records"),
            (("--job", "other"), "has no job other; it has: count"),
        ):
            error = self.assertRaises(ConfigurationError, prepare, self.words(*words), streams)
            self.assertIn(reason, str(error))
        self.file = self.write((COUNT + COPY).encode(), "jobs.py")
        error = self.assertRaises(ConfigurationError, prepare, self.words("--as", "x"), streams)
        self.assertIn("has the jobs count, copy: --as needs --job", str(error))
        error = self.assertRaises(ConfigurationError, prepare, ("task", "run", self.file), streams)
        self.assertIn("bootstrap.servers", str(error))


def session(commitMs: int) -> tuple[str, ...]:
    """Settings with which a container that died is soon missed."""
    settings = (
        "consumer.session.timeout.ms=1000",
        "consumer.heartbeat.interval.ms=200",
        f"commit.interval.ms={commitMs}",
        "producer.transaction.timeout.ms=1000",
    )
    return tuple(word for each in settings for word in ("--set", each))


class ProcessesTests(TaskCase):
    """C{--containers}."""

    timeout = 120

    def containers(self, pid: int) -> list[int]:
        """The processes of the containers that a process has started."""
        found = []
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            for child in map(int, file.read().split()):
                with open(f"/proc/{child}/cmdline", encoding="utf-8") as line:
                    if REPORT.search(line.read()):
                        found.append(child)
        return found

    async def test_killed(self) -> None:
        """
        One of two processes is killed: it is started again, no message is lost, and SIGTERM ends
        all in order, with 0.
        """
        protocol, process = self.spawn(*self.words("--containers", "2", *session(50)))
        await self.send("a0")
        await self.send("b0", partition=1)
        await protocol.said(b"counted a0")
        await protocol.said(b"counted b0")
        first = self.containers(process.pid)
        self.assertEqual(len(first), 2, protocol.errors)
        os.kill(first[0], signal.SIGKILL)
        await protocol.said(b"has ended with signal 9; it is started again")
        await self.send("a1")
        await self.send("b1", partition=1)
        await protocol.said(b"counted a1")
        await protocol.said(b"counted b1")
        while len(second := self.containers(process.pid)) < 2:
            await deferLater(reactor, 0.05)
        self.assertEqual((first[1] in second, first[0] in second), (True, False))
        process.signalProcess("TERM")
        outcome = await protocol.ended
        self.assertEqual(outcome.code, 0, outcome.errors)
        for line in outcome.output.decode().splitlines():
            self.assertRegex(line, r"^\[count/[12]\] counted [ab][01]$")
        self.assertEqual([pid for pid in second if os.path.exists(f"/proc/{pid}")], [])
        found = dict(await self.content("count-counts-changelog"))
        self.assertEqual(set(found), {b"a0", b"a1", b"b0", b"b1"})
        again = await self.run_("--until-end")
        self.assertEqual(again.errors.splitlines()[-1], "0 messages handled")

    async def test_killedExactlyOnce(self) -> None:
        """
        With C{exactly_once_v2} processes that are killed with a transaction open, one after the
        other, neither lose an output nor send one twice; stores are as if none had died.
        """
        self.file = self.write(TALLY.encode(), "tally.py")
        exactlyOnce = ("--set", "processing.guarantee=exactly_once_v2")
        protocol, process = self.spawn(
            *self.words("--containers", "2", *exactlyOnce, *session(300))
        )
        for number in range(1, 5):
            await self.send("a")
            await self.send("b", partition=1)
            for word in (b"a", b"b"):
                await protocol.said(b"counted %b %d\n" % (word, number))
            if number < 4:
                containers = self.containers(process.pid)
                os.kill(containers[number % len(containers)], signal.SIGKILL)
                while protocol.errors.count(b"is started again") < number:
                    await deferLater(reactor, 0.01)
        process.signalProcess("TERM")
        outcome = await protocol.ended
        self.assertEqual(outcome.code, 0, outcome.errors)
        await self.run_("--until-end", *exactlyOnce)
        servers = self.broker.bootstrapServers
        while (await self.ends("tallies", True)) != await self.ends("tallies", False):
            await deferLater(reactor, 0.05)  # a transaction is open of one that did not come back
        sent = await readAll(reactor, servers, "tallies")
        for word in (b"a", b"b"):
            counts = [LONG.decode(each.value or b"") for each in sent if each.key == word]
            self.assertEqual(counts, [1, 2, 3, 4], outcome.errors)
        changes = await readAll(reactor, servers, "tally-counts-changelog")
        last = {each.key: LONG.decode(each.value or b"") for each in changes}
        self.assertEqual(last, {b"a": 4, b"b": 4})

    async def test_badMessage(self) -> None:
        """A message that cannot be handled ends all, with 1: no process is started again."""
        await self.send("bad")
        protocol, _process = self.spawn(*self.words("--containers", "2"))
        outcome = await protocol.ended
        self.assertEqual(outcome.code, 1)
        self.assertRegex(
            outcome.errors,
            r"\[count/[12]\] pylogbroker: task count-0 failed at offset 0 of partition 0 of words",
        )
        self.assertRegex(outcome.errors, r"pylogbroker: container count/[12] cannot go on")
        self.assertNotIn("started again", outcome.errors)

    async def test_untilEnd(self) -> None:
        """Both end at the end of the input, and so does the command; C{--as} is passed on."""
        await self.send("a", "b")
        await self.send("c", partition=1)
        more = ("--containers", "2", "--until-end", "--as", "x", "--set", "commit.interval.ms=50")
        protocol, _process = self.spawn(*self.words(*more))
        outcome = await protocol.ended
        self.assertEqual((outcome.code, len(outcome.output.splitlines())), (0, 3), outcome.errors)
        self.assertEqual(outcome.errors.splitlines()[-1], "3 messages handled")
        self.assertRegex(outcome.output.decode(), r"^\[x/[12]\] counted")
        found = await self.content("x-counts-changelog")
        self.assertEqual({key for key, _value in found}, {b"a", b"b", b"c"})

    async def test_orphans(self) -> None:
        """When the supervisor is killed, its containers commit and end."""
        protocol, process = self.spawn(*self.words("--containers", "2"))
        await self.send("a")
        await protocol.said(b"counted a")
        found = self.containers(process.pid)
        process.signalProcess("KILL")
        await protocol.ended
        while any(self._isAlive(pid) for pid in found):
            await deferLater(reactor, 0.05)
        again = await self.run_("--until-end")
        self.assertEqual(again.errors.splitlines()[-1], "0 messages handled")

    @staticmethod
    def _isAlive(pid: int) -> bool:
        """Not one whose end only this system's init has not seen."""
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                return file.read().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


class ProgressTests(CommandCase):
    """What people see meanwhile."""

    REPORTS = (
        ContainerReport(2, 1_500, 0, 2, ("s-0: 1 of 2", "t-1: 3 of 9"), False, 2, 1_200),
        ContainerReport(1, 600, 3),
    )

    def start(self, errors: io.StringIO) -> tuple[Any, TaskProgress, list[ContainerReport]]:
        clock = Clock()
        reports = [ContainerReport()]
        made = TaskProgress(Streams(-1, -1, errors, clock), lambda: reports)
        return clock, made, reports

    def test_terminal(self) -> None:
        """On a terminal a line changes each second; it is cleared for others, and at the end."""
        errors = Terminal()
        clock, made, reports = self.start(errors)
        reports[:] = self.REPORTS[1:]
        clock.advance(1)
        self.assertIn("1 task, 600 messages handled, 3 left out, 600 messages/s", errors.getvalue())
        clock.advance(1)
        self.assertIn("left out, 0 messages/s", errors.getvalue())
        made.clear()
        self.assertTrue(errors.getvalue().endswith(" \r"))
        made.stop()
        clock.advance(10)
        last = errors.getvalue().splitlines()[-1]
        self.assertEqual(last, "1 task, 600 messages handled, 3 left out")

    def test_elsewhere(self) -> None:
        """Elsewhere there is a line a minute, if there is news."""
        errors = io.StringIO()
        clock, made, reports = self.start(errors)
        reports[:] = self.REPORTS
        for _second in range(150):
            clock.advance(1)
        line = (
            "3 tasks, 2 stand-bys (1,200 changes behind), 2,100 messages handled, 3 left out,"
            " restoring 2 stores (s-0: 1 of 2; t-1: 3 of 9)"
        )
        self.assertEqual(errors.getvalue().splitlines(), [line])
        made.stop()


class SparkTests(TaskCase):
    """C{--engine spark}: what is refused before Spark starts."""

    async def refusal(self, *more: str) -> str:
        outcome = await self.run_("--engine", "spark", *more)
        self.assertNotEqual(outcome.code, 0)
        return outcome.errors.splitlines()[-1]

    async def test_options(self) -> None:
        """Options that do not go together, and secrets that would travel."""
        for more, reason in (
            (("--engine", "spark", "--containers", "2"), "--containers has no meaning"),
            (("--engine", "spark", "--container-id", "x"), "--container-id has no meaning"),
            (("--engine", "spark", "--set", "sasl.password=x"), "in the file of --config"),
            (("--master", "local[2]"), "--master and --conf are for --engine spark"),
        ):
            with redirect_stderr(io.StringIO()) as errors, self.assertRaises(SystemExit):
                await self.run_(*more)
            self.assertIn(reason, errors.getvalue())

    async def test_settings(self) -> None:
        """Settings that ask for what Spark does not do."""
        self.assertIn(
            "outputs at least once",
            await self.refusal("--set", "processing.guarantee=exactly_once_v2"),
        )
        self.assertIn(
            "consumer.auto.offset.reset=none",
            await self.refusal("--set", "consumer.auto.offset.reset=none"),
        )

    async def test_coroutines(self) -> None:
        """A job whose task awaits has no reactor there."""
        self.file = self.write(COUNT.replace("def process", "async def process").encode(), "job.py")
        self.assertIn("has coroutine functions", await self.refusal())

    async def test_notInstalled(self) -> None:
        """Without the extra there is an error that names it."""
        for name in ("pyspark", "google.protobuf"):
            with patch.dict(sys.modules, {name: None}):
                found = await self.refusal()
            self.assertIn("pip install 'pylogbroker[spark]'", found)
            self.assertIn(f"no module {name}", found)

    async def test_noInput(self) -> None:
        """An input that is not there has no end."""
        self.file = self.write(COUNT.replace('"words"', '"nothing"').encode(), "job.py")
        self.assertIn("there is no topic nothing", await self.refusal("--until-end"))
