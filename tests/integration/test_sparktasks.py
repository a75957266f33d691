"""
Jobs on Spark: a real session, a real broker, and the same jobs in a container beside it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pylogbroker.errors import ConfigurationError, SparkQueryError
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.spark.kafka.options import KafkaSinkOptions
from pylogbroker.spark.kafka.sink import KafkaTaskWriter
from pylogbroker.spark.tasks.jobquery import JobPlace, JobQuery
from pylogbroker.spark.tasks.processor import stateNameOf
from pylogbroker.tasks.job import Input, Job, loadJobs
from pylogbroker.tasks.serdes import INTEGER, STRING
from pylogbroker.tasks.state.rocksdbengine import RocksDbEngine
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.cli.commands import CommandCase, reactor
from tests.cli.taskjobs import COPY, COUNT
from tests.integration.sparksession import ROOT, sharedSession
from tests.integration.test_spark import SparkCase
from tests.tasks.jobs import countLines, countWords

WORD_COUNT = ROOT / "docs" / "examples" / "tasks" / "wordcount.py"
LINES = (ROOT / "LICENSE").read_text(encoding="utf-8").splitlines()
TASK_COUNT = 2
SPLIT_NAME, COUNT_NAME = "split-on-spark", "count-on-spark"

Message = tuple[bytes | None, bytes | None]


class SparkTaskCase(SparkCase):
    """Has a broker, and runs jobs."""

    def setUp(self) -> None:
        super().setUp()
        # Messages have times of long ago, and a slow machine lets retention run.
        properties = {"num.partitions": str(TASK_COUNT), "log.retention.ms": "-1"}
        self.broker = BackgroundBroker(properties).start()
        self.addCleanup(self.broker.close)
        self.servers = {"kafka.bootstrap.servers": self.broker.bootstrapServers}

    def produce(self, topic: str, messages: Sequence[tuple[str | None, bytes]]) -> None:
        """Messages, each a millisecond behind the one before."""
        options = KafkaSinkOptions.fromOptions(self.servers)
        with options.cluster() as cluster:
            writer = KafkaTaskWriter(options, cluster)
            for number, (key, value) in enumerate(messages):
                timestampMs = 1_700_000_000_000 + number
                writer.add(topic, None, key, value, (), timestampMs)
            writer.flush()

    def inContainer(self, file: Path, name: str, *more: str) -> None:
        """Run a job of a file in a container, to the end of what there is."""
        words = [sys.executable, "-m", "pylogbroker", "task", "run", str(file), "--job", name]
        words += ["--bootstrap-server", self.broker.bootstrapServers, "--until-end"]
        words += ["--state-dir", f"{self.folder}/containers", *more]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)

    def newQuery(self, job: Job, areWanted: bool = True, /, **reading: str) -> JobQuery:
        """A job on Spark."""
        place = JobPlace(
            f"{self.folder}/spark",
            self.servers,
            {"startingOffsets": "earliest", **reading},
            {},
            1 << 20,
        )
        return JobQuery(self.spark, job, place, TASK_COUNT, areWanted)

    def onSpark(self, job: Job, **reading: str) -> JobQuery:
        """
        Run a job on Spark, to the end of what there is. On a busy machine the process that Spark
        starts for a plan is not always there in time; that alone is tried again.
        """
        for attempt in range(5):
            query = self.newQuery(job, True, **reading)
            self.addCleanup(query.stop)
            try:
                query.start(isUntilEnd=True)
                while not query.wait(0.2):
                    pass
            except SparkQueryError as error:
                if "failed to connect back" in str(error.__cause__) and attempt < 4:
                    continue
                raise
            return query
        raise AssertionError("Spark's process was never there in time")

    def messages(self, topic: str) -> list[Message]:
        """All of a topic, each partition's in order."""
        rows = self.batch(subscribe=topic, **self.servers).orderBy("partition", "offset").collect()
        return [
            (
                None if row["key"] is None else bytes(row["key"]),
                None if row["value"] is None else bytes(row["value"]),
            )
            for row in rows
        ]

    def storedBy(self, query: JobQuery, store: str) -> dict[bytes, bytes]:
        """The entries of a store of all tasks, in Spark's state."""
        rows = (
            self.spark.read.format("statestore")
            .option("path", query.checkpoint)
            .option("stateVarName", stateNameOf(store))
            .load()
            .selectExpr("user_map_key.key AS key", "user_map_value.value AS value")
            .collect()
        )
        return {bytes(row["key"]): bytes(row["value"]) for row in rows}


def counts(messages: Any) -> dict[str, int]:
    """Words and their last counts."""
    return {STRING.decode(key): INTEGER.decode(value) for key, value in dict(messages).items()}


class WordCountTests(SparkTaskCase):
    """The paper's example, as it stands in its file."""

    def test_bothEngines(self) -> None:
        """
        The words of both engines are the same, and so are the counts: in the topic that is the
        changelog, and in the stores. A query that goes on from its checkpoint counts what is new.
        """
        jobs = loadJobs(str(WORD_COUNT))
        lines = [(None, line.encode()) for line in LINES]
        self.produce("lines", lines)
        self.inContainer(WORD_COUNT, "split-words")
        splitting = self.onSpark(jobs["split-words"].renamed(SPLIT_NAME))
        self.assertEqual(splitting.progress().handledCount, len(LINES))
        words = self.messages("words")
        self.assertEqual(Counter(words), Counter(self.messages(f"words.{SPLIT_NAME}")))

        self.inContainer(WORD_COUNT, "count-words")
        counting = jobs["count-words"].renamed(COUNT_NAME)
        query = self.onSpark(counting, maxOffsetsPerTrigger="100")
        self.assertEqual(query.progress().handledCount, len(words))
        self.assertGreater(query.progress().batchCount, 1)
        truth = Counter(word for line in LINES for word in line.split())
        self.assertEqual(counts(self.messages("word-counts")), truth)
        self.assertEqual(counts(self.messages(f"word-counts.{COUNT_NAME}")), truth)
        stored: dict[bytes, bytes] = {}
        for task in range(TASK_COUNT):
            folder = f"{self.folder}/containers/count-words/{task}/word-counts"
            engine = RocksDbEngine(folder, self.fail)
            stored.update(engine.range(None, None))
            engine.close()
        self.assertEqual(self.storedBy(query, "word-counts"), stored)

        self.produce("words", [(word, INTEGER.encode(1)) for word in ("log", "new", "log")])
        query = self.onSpark(counting)
        self.assertEqual(query.progress().handledCount, 3)
        truth.update(["log", "new", "log"])
        self.assertEqual(counts(self.storedBy(query, "word-counts")), truth)
        self.assertEqual(counts(self.messages(f"word-counts.{COUNT_NAME}")), truth)

    def test_repartition(self) -> None:
        """
        A job that reads what it writes ends when all that came of its input is handled. What is
        handled can be deleted from there.
        """
        job = countLines()
        topic = job.repartitionTopicOf(job.repartitions[0])
        self.produce("lines", [(None, line.encode()) for line in LINES])
        with KafkaSinkOptions.fromOptions(self.servers).cluster() as cluster:
            cluster.partitions(topic, isCreating=True)
        query = self.onSpark(job)
        truth = Counter(word for line in LINES for word in line.split())
        self.assertEqual(counts(self.storedBy(query, "word-counts")), truth)
        self.assertEqual(query.progress().handledCount, len(LINES) + truth.total())
        self.assertEqual(len(self.messages(topic)), truth.total())
        query.purge()
        self.assertEqual(self.messages(topic), [])


def sshLog() -> list[str]:
    """Failed logins of some addresses, in the order of time, with pauses."""
    chance = random.Random(3)
    at, lines = datetime(2025, 12, 10, tzinfo=UTC), []
    for number in range(60):
        at += timedelta(seconds=chance.choice([1, 5, 50, 700]))
        user, address = chance.choice("abc"), chance.choice(["10.0.0.1", "10.0.0.2"])
        head = f"{at:%b %d %H:%M:%S} host sshd[{number // 3}]: "
        lines.append(f"{head}Invalid user {user} from {address}")
        if chance.random() < 0.7:
            lines.append(f"{head}Failed password for invalid user {user} from {address} port 1")
    return lines


class StreamTests(SparkTaskCase):
    """Jobs of the high-level API, as they stand in their files."""

    def assertSame(self, name: str, output: str, *more: str) -> None:
        """
        Run a job on both engines: outputs are the same sets, the changelogs have the same last
        values, and these are what Spark's state has.
        """
        file = WORD_COUNT.with_name(name.replace("-", "") + ".py")
        self.inContainer(file, name, *more)
        job = loadJobs(str(file))[name]
        onSpark = job.renamed("on-spark")
        with KafkaSinkOptions.fromOptions(self.servers).cluster() as cluster:
            for each in onSpark.repartitions:
                cluster.partitions(onSpark.repartitionTopicOf(each), isCreating=True)
        query = self.onSpark(onSpark)
        sent = self.messages(output)
        self.assertGreater(len(sent), 5)
        self.assertEqual(Counter(self.messages(f"{output}.on-spark")), Counter(sent))
        for store in job.stores:
            last = dict(self.messages(job.changelogOf(store)))
            self.assertEqual(dict(self.messages(onSpark.changelogOf(store))), last)
            kept = {key: value for key, value in last.items() if value is not None}
            self.assertEqual(self.storedBy(query, store.name), kept)

    def test_sessions(self) -> None:
        """Session windows behind a repartition."""
        self.produce("ssh-log", [(None, line.encode()) for line in sshLog()])
        self.assertSame("ssh-attackers", "ssh-attackers")

    def test_streamTableJoin(self) -> None:
        """The table is whole before the first message of the stream."""
        self.produce("ssh-log", [(None, line.encode()) for line in sshLog()])
        owners = [("a", b'{"owner":"ann"}'), ("b", b'{"owner":"ben"}'), ("a", b'{"owner":"al"}')]
        self.produce("accounts", owners)
        self.assertSame("account-attacks", "account-attacks")
        found = [
            value
            for _, value in self.messages("account-attacks")
            if b'"owner":"al"' in (value or b"")
        ]
        self.assertGreater(len(found), 5)

    def test_windowJoin(self) -> None:
        """
        Pairs within a minute, and messages that found none. No message is late: the container waits
        for both sides of the join, which come by topics of the job itself.
        """
        self.produce("ssh-log", [(None, line.encode()) for line in sshLog()])
        self.assertSame("ssh-funnel", "ssh-funnel", "--set", "max.task.idle.ms=10000")


OPERATORS = """
from pylogbroker.tasks.serdes import LONG, STRING
from pylogbroker.tasks.streams import buildJob, stream

lines = stream("lines", message=STRING)
words = lines.flatMapValues(str.split, message=STRING)
counts = words.groupBy(lambda _, word: word, key=STRING).count(name="counts")
even = counts.filter(lambda word, count: count % 2 == 0).toStream().to("even")
wordCount = buildJob("word-count", counts, even)

def inverse(line):
    return 1_000 // len(line)

long = lines.filter(lambda _, line: line != "short").mapValues(inverse, message=LONG)
inverses = buildJob("inverses", long.to("inverses"))
"""


SIZES = """
from pylogbroker.tasks.serdes import LONG
from pylogbroker.tasks.streams import buildJob, stream

sizes = buildJob("sizes", stream("words").mapValues(len, message=LONG).to("sizes"))
"""


class OperatorTests(SparkTaskCase):
    """Jobs of the high-level API whose steps are Spark's own operators."""

    def setUp(self) -> None:
        super().setUp()
        self.file = Path(self.folder, "job.py")
        self.file.parent.mkdir()
        self.file.write_text(OPERATORS, encoding="utf-8")
        self.jobs = loadJobs(str(self.file))

    def test_counts(self) -> None:
        """
        Outputs and the changelog have the last values that a container gives, also behind a
        restart; repartition topics are not there. Its checkpoint is not one of tasks.
        """
        job = self.jobs["word-count"]
        onSpark = job.renamed("on-spark")
        [store] = job.stores
        self.produce("lines", [(None, line.encode()) for line in LINES])
        for more in ((), (b"a new line", b"a line")):
            self.produce("lines", [(None, line) for line in more])
            self.inContainer(self.file, "word-count")
            query = self.onSpark(onSpark, maxOffsetsPerTrigger="10")
            self.assertEqual(query.obstacles, [])
            self.assertEqual(query.progress().handledCount, len(more) or len(LINES))
            self.assertEqual(query.progress().batchCount > 1, not more)
            for topic, its in (
                ("even", "even.on-spark"),
                (job.changelogOf(store), onSpark.changelogOf(store)),
            ):
                self.assertEqual(dict(self.messages(its)), dict(self.messages(topic)))
        self.assertEqual({*self.messages("even.on-spark")} - {*self.messages("even")}, set())
        truth = Counter(word for line in LINES for word in line.split())
        truth.update(["a", "new", "line", "a", "line"])
        changes = self.messages(onSpark.changelogOf(store))
        found = {store.key.decode(k or b""): store.value.decode(v or b"") for k, v in changes}
        self.assertEqual({key: value.value for key, value in found.items()}, truth)
        with self.assertRaisesRegex(ConfigurationError, "is of Spark's operators and state, and"):
            self.newQuery(onSpark, False).start()

    def test_stateless(self) -> None:
        """
        The messages are those of a container. One that cannot be handled ends the query, with an
        error that names it.
        """
        self.produce("lines", [(None, line) for line in (b"short", b"a line", b"another line")])
        self.inContainer(self.file, "inverses")
        onSpark = self.jobs["inverses"].renamed("on-spark")
        query = self.onSpark(onSpark)
        self.assertEqual((query.obstacles, query.progress()[:2]), ([], (3, 0)))
        found = Counter(self.messages("inverses.on-spark"))
        self.assertEqual(found, Counter(self.messages("inverses")))
        self.assertEqual(found.total(), 2)
        self.produce("lines", [(None, b"")])
        error = self.assertRaises(SparkQueryError, self.onSpark, onSpark)
        self.assertRegex(
            str(error),
            r"^job on-spark: Spark's query failed: task on-spark-[01] failed at offset \d of"
            r" partition [01] of lines: ZeroDivisionError: integer .* \(TaskFailedError\)$",
        )


class BroadcastTests(SparkTaskCase):
    """Inputs that each task reads whole."""

    def test_broadcast(self) -> None:
        """Each task has each message of it, of all partitions, before any of the other input."""
        job = countWords(
            inputs=[
                Input("words", STRING, INTEGER),
                Input("more", STRING, INTEGER, isBootstrap=True, isBroadcast=True),
            ]
        )
        one = INTEGER.encode(1)
        self.produce("more", [(word, one) for word in ("to", "be", "or")])
        self.produce("words", [("be", one)])
        query = self.onSpark(job)
        self.assertEqual(query.progress().handledCount, 3 * TASK_COUNT + 1)
        words = Counter(STRING.decode(key or b"") for key, _ in self.messages("word-counts"))
        self.assertEqual(words, {"to": TASK_COUNT, "be": TASK_COUNT + 1, "or": TASK_COUNT})
        self.assertEqual(
            sorted(INTEGER.decode(value or b"") for _, value in self.messages("word-counts")),
            [1] * 3 * TASK_COUNT + [2],
        )


class CommandTests(CommandCase):
    """The command, with the session of this process."""

    timeout = 300

    async def test_untilEnd(self) -> None:
        """Jobs of a file run side by side, and it ends with 0 when what there was is handled."""
        sharedSession()
        broker = BackgroundBroker({"num.partitions": "1"}).start()
        self.addCleanup(broker.close)
        place = ["--bootstrap-server", broker.bootstrapServers]
        state = ["--state-dir", os.path.abspath(self.mktemp())]
        producer = KafkaProducer(reactor, {"bootstrap.servers": broker.bootstrapServers})
        for word in (b"a", b"b", b"a"):
            await producer.send("words", word)
        await producer.close()
        file = self.write((COUNT + COPY + SIZES).encode(), "jobs.py")
        outcome = await self.perform(
            "task", "run", file, "--engine", "spark", "--until-end", *place, *state
        )
        lines = outcome.errors.splitlines()
        self.assertEqual((outcome.code, lines[-1]), (0, "3 tasks, 9 messages handled"))
        self.assertEqual(
            lines[:2],
            [
                f"runs job count, copy, sizes on Spark, with its state in {state[1]}",
                "job sizes: its steps run as Spark's operators",
            ],
        )


class EndTests(SparkTaskCase):
    """How queries end."""

    def test_failure(self) -> None:
        """
        A message that cannot be handled ends the query, with an error that names it, and its
        micro-batch has left no state. A query of one that can goes on there.
        """
        self.produce("words", [(word, INTEGER.encode(1)) for word in ("good", "bad")])
        error = self.assertRaises(SparkQueryError, self.onSpark, countWords())
        self.assertRegex(
            str(error),
            r"^job count-words: Spark's query failed: task count-words-[01] failed at offset [01]"
            r" of partition [01] of words: ValueError: a bad word \(TaskFailedError\)$",
        )
        query = self.onSpark(countWords(onError="skip"))
        self.assertEqual(query.progress()[:2], (2, 1))
        self.assertEqual(counts(self.storedBy(query, "word-counts")), {"good": 1})

    def test_shutdown(self) -> None:
        """A task that asks for the end ends a query that would go on for ever."""
        self.produce("words", [("enough", INTEGER.encode(1))])
        query = self.newQuery(countWords())
        self.addCleanup(query.stop)
        query.start()
        while not query.wait(0.2):
            pass
        self.assertEqual(query.progress()[:2], (1, 0))
        self.assertFalse(query.isActive)

    def test_windows(self) -> None:
        """
        A job with C{window} ends at the end of its inputs, too, and C{window} is called by Spark's
        clock, with no further messages.
        """
        trending = loadJobs(str(WORD_COUNT.with_name("trendingwords.py")))["trending-words"]
        self.produce("word-counts", [("log", INTEGER.encode(3))])
        query = self.onSpark(trending)
        self.assertEqual(query.progress().handledCount, 1)
        self.assertEqual(counts(self.storedBy(query, "growths")), {"log": 3})
