"""
Tests for C{task plan}, C{task describe} and C{task reset}, on a real broker. C{task run} is tested
in L{tests.cli.test_taskrun}.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from confluent_kafka import Consumer, Producer

from pylogbroker.config.kafka.tasksettings import CONFIG_TOPIC, METRICS_TOPIC
from pylogbroker.tasks.job import loadJobs
from pylogbroker.tasks.reports.containermetrics import ContainerMetrics, StandbyMetrics
from pylogbroker.tasks.reports.jobconfig import configOf
from pylogbroker.types import TopicPartition
from tests.cli.commands import performAtOnce
from tests.cli.kafka.test_commands import CurrentCase
from tests.cli.taskjobs import COPY, COUNT, STEPS, TURN

CHANGELOG = "count-counts-changelog"


class TaskFileCase(CurrentCase):
    """A file with the jobs C{count} and C{copy}."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = os.path.abspath(self.mktemp())
        os.makedirs(self.folder)
        self.file = self.write("jobs.py", COUNT + COPY)
        self.state = os.path.join(self.folder, "state")

    def write(self, name: str, text: str) -> str:
        path = os.path.join(self.folder, name)
        Path(path).write_text(text, encoding="utf-8")
        return path

    def publish(self, topic: str, records: Iterable[tuple[str, bytes | None]]) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrapServers})
        for key, value in records:
            producer.produce(topic, value, key)
        self.assertEqual(producer.flush(30), 0)

    def task(self, verb: str, *words: str) -> tuple[str, ...]:
        return ("task", verb, self.file, "--state-dir", self.state, *words)


class PlanTests(TaskFileCase):
    """C{task plan}."""

    def plan(self, *words: str) -> str:
        outcome = performAtOnce("task", "plan", *(words or (self.file,)))
        self.assertEqual(outcome.code, 0, outcome.errors)
        return outcome.output.decode()

    def test_text(self) -> None:
        """Each job's topics, without a broker."""
        lines = [line.split() for line in self.plan().splitlines()]
        window = ("window", "each", "1,000", "ms")
        self.assertEqual(
            lines,
            [
                ["job", "count:", "a", "task", "for", "each", "partition,", "onError=stop"],
                ["KIND", "TOPIC", "KEY", "MESSAGE", "PARTITIONS", "STORE"],
                ["input", "words", "bytes", "string", "-", "-"],
                ["changelog", CHANGELOG, "string", "long", "-", "counts,", "memory"],
                [],
                ["job", "copy:", *lines[0][2:7], "onError=dead-letter,", *window],
                ["KIND", "TOPIC", "KEY", "MESSAGE", "PARTITIONS", "STORE"],
                ["input", "words", "bytes", "string", "-", "-"],
                ["output", "copied", "bytes", "string", "-", "-"],
                ["dead", "letters", "copy-dead-letters", "bytes", "bytes", "-", "-"],
            ],
        )

    def test_broker(self) -> None:
        """With a broker, partitions and tasks are counted."""
        self.done("topic", "create", "words", "--partitions", "3")
        text = self.done("task", "plan", self.file, "--job", "count")
        self.assertTrue(text.startswith("job count: 3 tasks, onError=stop\n"), text)
        [found] = self.document("task", "plan", self.file, "--job", "copy", "--as", "new")["jobs"]
        self.assertEqual((found["job"], found["tasks"], found["windowMs"]), ("new", 3, 1000))
        self.assertEqual(
            [(each["kind"], each["topic"], each["partitionCount"]) for each in found["topics"]],
            [
                ("input", "words", 3),
                ("output", "copied.new", None),
                ("dead letters", "new-dead-letters", None),
            ],
        )

    def test_all(self) -> None:
        """Writers and readers of each topic, over several files; a name that is there twice."""
        more = self.write("more.py", COPY.replace('"copy"', '"again"').replace("words", "copied"))
        Path(more).write_text(
            COUNT.split("class")[0]
            + Path(more).read_text().replace('Output("copied"', 'Output("last"')
        )
        lines = [
            [cell.strip() for cell in line.split("  ") if cell]
            for line in self.plan(self.file, more, "--all").splitlines()
        ]
        self.assertEqual(
            lines,
            [
                ["TOPIC", "PARTITIONS", "WRITTEN BY", "READ BY"],
                ["again-dead-letters", "-", "again (dead letters)", "-"],
                ["copied", "-", "copy", "again"],
                ["copy-dead-letters", "-", "copy (dead letters)", "-"],
                [CHANGELOG, "-", "count (changelog)", "-"],
                ["last", "-", "again", "-"],
                ["words", "-", "-", "count, copy"],
            ],
        )
        outcome = performAtOnce("task", "plan", self.file, more, "--all", "--json")
        self.assertEqual(
            outcome.document()["topics"][-1],
            {"topic": "words", "partitionCount": None, "writers": [], "readers": ["count", "copy"]},
        )
        outcome = performAtOnce("task", "plan", self.file, shutil.copy(self.file, more))
        self.assertEqual(outcome.code, 1)
        self.assertIn("another file has a job count", outcome.errors)

    def test_dot(self) -> None:
        """A graph: an edge from each input, and one to each topic that is written."""
        lines = self.plan(self.file, "--dot").splitlines()
        self.assertEqual((lines[0], lines[-1]), ("digraph jobs {", "}"))
        self.assertEqual(
            [line.strip() for line in lines if "->" in line],
            [
                '"topic words" -> "job count"',
                f'"job count" -> "topic {CHANGELOG}" [style=dashed, label="counts, memory"]',
                '"topic words" -> "job copy"',
                '"job copy" -> "topic copied"',
                '"job copy" -> "topic copy-dead-letters"',
            ],
        )

    def test_steps(self) -> None:
        """The steps of a job of the high-level API, as text, as JSON and as a picture."""
        path = self.write("steps.py", STEPS)
        lines = [line.split() for line in self.plan(path).splitlines()]
        place = lines.index(["STEP", "KIND", "FROM", "TO", "STORES", "DETAILS"])
        again = "visits-by-repartition"
        self.assertEqual(
            lines[place + 1 :],
            [
                ["visits", "stream", "visits", "-", "-", "-"],
                ["by", "selectKey", "visits", "-", "-", "-"],
                ["by-repartition", "repartition", "by", again, "-", "-"],
                ["count", "count", "by-repartition", "-", "count", "-"],
            ],
        )
        outcome = performAtOnce("task", "plan", path, "--json")
        [job] = outcome.document()["jobs"]
        self.assertEqual(
            job["steps"][2],
            {
                "name": "by-repartition",
                "kind": "repartition",
                "details": "",
                "parents": ["by"],
                "reads": again,
                "writes": again,
                "stores": [],
            },
        )
        picture = ElementTree.fromstring(self.plan(path, "--svg"))
        self.assertIn(again, [each.text for each in picture.iter() if each.tag.endswith("text")])

    def test_repartition(self) -> None:
        """A repartition is written and read; a broadcast input is read, and makes no tasks."""
        path = self.write("turn.py", COUNT + TURN)
        topic = "turn-by-word-repartition"
        lines = [line.split() for line in self.plan(path, "--job", "turn").splitlines()]
        self.assertIn(["repartition", topic, "string", "long", "-", "-"], lines)
        self.assertIn(["broadcast", "input", "rates", "bytes", "bytes", "-", "-"], lines)
        self.done("topic", "create", "words", "--partitions", "2")
        self.done("topic", "create", "rates", "--partitions", "3")
        [job] = self.document("task", "plan", path, "--job", "turn")["jobs"]
        self.assertEqual(job["tasks"], 2)
        rows = [line.split("  ") for line in self.plan(path, "--all").splitlines()]
        found = [[cell.strip() for cell in row if cell] for row in rows if row[0] == topic]
        self.assertEqual(found, [[topic, "-", "turn (repartition)", "turn (repartition)"]])
        found = [[cell.strip() for cell in row if cell] for row in rows if row[0] == "rates"]
        self.assertEqual(found, [["rates", "-", "-", "turn (broadcast input)"]])
        dots = self.plan(path, "--job", "turn", "--dot").splitlines()
        self.assertEqual(
            [line.strip() for line in dots if "->" in line and topic in line],
            [f'"job turn" -> "topic {topic}"', f'"topic {topic}" -> "job turn"'],
        )
        self.assertIn('  "topic rates" -> "job turn"', dots)

    def test_wrong(self) -> None:
        """Files without a job, or that raise, are named."""
        for text, reason in (
            ("", ": no global name in it is a Job"),
            ("1 / 0", ", line 1: ZeroDivisionError"),
        ):
            path = self.write("wrong.py", text)
            outcome = performAtOnce("task", "plan", path)
            self.assertEqual((outcome.code, outcome.output), (1, b""))
            self.assertIn(f"{path}{reason}", outcome.errors)
        self.wrong("task", "plan", self.file, "--all", "--dot")
        self.wrong("task", "plan", "--all")
        self.wrong("task", "plan", self.file, "--config-topic", "configs")
        self.wrong("task", "plan", "--as", "new", "--bootstrap-server", "localhost:1")


class PublishedTests(TaskFileCase):
    """C{task plan} of the jobs that containers have published."""

    def test_published(self) -> None:
        """
        Writers and readers of each topic over all jobs of a cluster, with the last record of each;
        what is no record of a job is left out, with a warning.
        """
        jobs = {name: configOf(job, {}).encode() for name, job in loadJobs(self.file).items()}
        self.done("topic", "create", CONFIG_TOPIC, "--partitions", "1")
        self.done("topic", "create", "words", "--partitions", "3")
        self.publish(
            CONFIG_TOPIC,
            [
                ("copy", b"{}"),
                ("count", jobs["count"]),
                ("gone", jobs["count"].replace(b"count", b"gone")),
                ("gone", None),
                ("copy", jobs["copy"]),
                ("other", jobs["copy"]),
                ("new\n", b'{"version":2}'),
            ],
        )
        outcome = self.execute("task", "plan", "--all")
        self.assertEqual(outcome.code, 0)
        lines = [
            [cell.strip() for cell in line.split("  ") if cell]
            for line in outcome.output.decode().splitlines()
        ]
        self.assertEqual(
            lines,
            [
                ["TOPIC", "PARTITIONS", "WRITTEN BY", "READ BY"],
                ["copied", "-", "copy", "-"],
                ["copy-dead-letters", "-", "copy (dead letters)", "-"],
                [CHANGELOG, "-", "count (changelog)", "-"],
                ["words", "3", "-", "copy, count"],
            ],
        )
        self.assertIn(
            f"job other of {CONFIG_TOPIC} is left out: it has the key of another job",
            outcome.errors,
        )
        self.assertIn(r"job new\n of", outcome.errors)
        self.assertIn("it has version 2; this program knows 1", outcome.errors)
        [found] = self.document("task", "plan", "--job", "count")["jobs"]
        self.assertEqual((found["job"], found["tasks"]), ("count", 3))
        self.assertIn(
            f"{CONFIG_TOPIC} has no job none; it has: copy, count",
            self.failed("task", "plan", "--job", "none"),
        )

    def test_topic(self) -> None:
        """The topic may have another name; one that is not there is named."""
        self.assertIn(f"there is no topic {CONFIG_TOPIC}", self.failed("task", "plan"))
        hostile = replace(configOf(loadJobs(self.file)["count"], {}), job='a"b')
        self.done("topic", "create", "jobs", "--partitions", "1")
        self.publish("jobs", [('a"b', hostile.encode())])
        text = self.done("task", "plan", "--dot", "--config-topic", "jobs")
        self.assertIn(r'"job a\"b" [label="a\"b", shape=box', text)


class StateTests(TaskFileCase):
    """C{task describe} and C{task reset}, for a job that has read 2 of 5 words."""

    def setUp(self) -> None:
        super().setUp()
        self.done("topic", "create", "words", "--partitions", "2")
        for partition, words in ((0, b"a\nb\nc\n"), (1, b"d\ne\n")):
            place = ("--topic", "words", "--partition", str(partition))
            self.done("produce", "-", *place, input=words)
        self.position("words", 0, 2)
        compact = ("--topic-config", "cleanup.policy=compact")
        self.done("topic", "create", CHANGELOG, "--partitions", "2", *compact)
        keyed = ("--topic", CHANGELOG, "--partition", "1", "--key-separator", ":")
        self.done("produce", "-", *keyed, input=b"c:1\nd:2\n")
        for task in (0, 3):
            store = os.path.join(self.state, "count", str(task), "counts")
            os.makedirs(store)
            Path(store, "data").write_bytes(b"12345")

    def position(self, topic: str, partition: int, offset: int) -> None:
        where = ("--topic", topic, "--partition", str(partition))
        self.done("group", "reset", "count", *where, "--to-offset", str(offset), "--execute")

    def positions(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(each["topic"], each["partition"]): each["offset"]
            for each in self.document("group", "export", "count")["offsets"]
        }

    def describe(self) -> Any:
        [found] = self.document(*self.task("describe", "--job", "count"))["jobs"]
        return found

    def test_describe(self) -> None:
        """Positions and lag of each input's partition; changelogs; stores of this machine."""
        found = self.describe()
        self.assertEqual((found["job"], found["state"], found["members"]), ("count", "Empty", []))
        self.assertEqual(
            [(each["partition"], each["offset"], each["lag"]) for each in found["inputs"]],
            [(0, 2, 1), (1, None, None)],
        )
        self.assertEqual(
            [tuple(each.values()) for each in found["stores"]],
            [
                ("counts", 0, CHANGELOG, 0, 0, 5),
                ("counts", 1, CHANGELOG, 0, 2, None),
                ("counts", 3, CHANGELOG, None, None, 5),
            ],
        )
        self.assertEqual(found["stateFolder"], os.path.join(self.state, "count"))
        text = self.done(*self.task("describe"))
        self.assertIn("group count  Empty", text)
        self.assertIn("STORE   TASK  CHANGELOG", text)
        self.assertIn("group copy", text)

    def test_standbys(self) -> None:
        """Stand-bys as containers have reported them; the dead, and what is no report, are not."""
        self.assertEqual(self.describe()["standbys"], [])
        self.done("topic", "create", METRICS_TOPIC, "--partitions", "1")
        self.done("topic", "create", "m", "--partitions", "1")
        [one, other] = (
            ContainerMetrics(
                "count", name, f"host-{name}", "", 1, 2_000, 3, 0, 0, 0, 0, 0, (), "", 2, standbys
            )
            for name, standbys in (
                ("b", (StandbyMetrics(1, False, None), StandbyMetrics(0, True, 3))),
                ("a", (StandbyMetrics(1, True, 12_345),)),
            )
        )
        failed = replace(one, container="c", failure="StorageError")
        foreign = replace(one, job="copy")
        for topic, records in (
            (
                METRICS_TOPIC,
                [
                    *((each.key, each.encode()) for each in (one, other, failed, foreign)),
                    ("count/\n", one.encode()),
                    ("count/gone", other.encode()),
                    ("count/gone", None),
                ],
            ),
            ("m", [(other.key, other.encode())]),
        ):
            self.publish(topic, records)
        self.assertEqual(
            [tuple(each.values()) for each in self.describe()["standbys"]],
            [
                (0, "b", "host-b", True, 3, 2_000),
                (1, "a", "host-a", True, 12_345, 2_000),
                (1, "b", "host-b", False, None, 2_000),
            ],
        )
        outcome = self.execute(*self.task("describe", "--job", "count"))
        text = outcome.output.decode()
        self.assertRegex(text, r"STANDBY +CONTAINER +HOST +CURRENT +LAG +REPORTED")
        self.assertRegex(text, r"1 +b +host-b +no +- +\d+ s ago")
        self.assertIn(r"container count/\n of", outcome.errors)
        self.assertIn("it has the key of another container", outcome.errors)
        config = self.write("task.properties", f"state.dir={self.state}\nmetrics.topic=m\n")
        for words in (("--metrics-topic", "m"), ("--config", config)):
            [found] = self.document("task", "describe", self.file, "--job", "count", *words)["jobs"]
            self.assertEqual([each["container"] for each in found["standbys"]], ["a"])
        missing = self.document(*self.task("describe", "--metrics-topic", "none"))["problems"]
        self.assertEqual(
            missing, ["there is no topic none: no container has published its metrics"]
        )

    def test_missingTopic(self) -> None:
        """An input that is not there is told of; a reset refuses it."""
        self.done("topic", "delete", "words")
        outcome = self.execute(*self.task("describe", "--job", "count"))
        self.assertEqual(outcome.code, 0)
        self.assertIn("job count: there is no topic words", outcome.errors)
        self.assertIn("there is no topic words", self.failed(*self.task("reset", "--execute")))

    def test_stateFolder(self) -> None:
        """The folder of stores may stand in the property file of containers."""
        config = self.write("task.properties", f"state.dir={self.state}\ncommit.interval.ms=7\n")
        words = ("task", "describe", self.file, "--job", "count", "--config", config)
        [found] = self.document(*words)["jobs"]
        self.assertEqual(found["stores"][0]["localSize"], 5)

    def test_dryRun(self) -> None:
        """Without C{--execute} a reset shows what it would do, and does nothing."""
        before = self.describe()
        outcome = self.execute(*self.task("reset", "--job", "count"))
        self.assertEqual(outcome.code, 0)
        rows = [line.split() for line in outcome.output.decode().splitlines()[1:]]
        self.assertEqual(
            rows,
            [["count", "words", "0", "2", "0", "-2"], ["count", "words", "1", "-", "0", "-"]],
        )
        self.assertEqual(
            outcome.errors.splitlines(),
            [
                f"would delete topic {CHANGELOG}, a changelog of count",
                f"would delete {self.state}/count, 10 bytes of stores",
                "nothing was changed; --execute does it",
            ],
        )
        self.assertEqual(self.describe(), before)

    def test_execute(self) -> None:
        """A reset sets positions, and deletes changelogs, and the stores of this machine."""
        other = os.path.join(self.state, "other")
        os.makedirs(other)
        outcome = self.execute(*self.task("reset", "--job", "count", "--execute"))
        self.assertEqual(outcome.code, 0, outcome.errors)
        zero = {TopicPartition("words", 0): 0, TopicPartition("words", 1): 0}
        self.assertEqual(self.positions(), zero)
        topics = [each["topic"] for each in self.document("topic", "list")["topics"]]
        self.assertEqual((CHANGELOG in topics, "words" in topics), (False, True))
        self.assertEqual(os.listdir(self.state), ["other"])
        outcome = self.execute(*self.task("reset", "--job", "count", "--execute"))
        self.assertEqual((outcome.code, self.positions()), (0, zero))

    def test_repartition(self) -> None:
        """
        The lag of a repartition topic is shown; a reset deletes it, with its positions. Broadcast
        inputs have none.
        """
        self.done("topic", "create", "rates", "--partitions", "1")
        topic = "turn-by-word-repartition"
        path = self.write("turn.py", COUNT + TURN)
        words = (path, "--job", "turn", "--state-dir", self.state)
        self.done("task", "describe", *words)  # the job has not run yet: there is no such topic
        self.done("topic", "create", topic, "--partitions", "1")
        self.done("produce", "-", "--topic", topic, "--partition", "0", input=b"a\nb\n")
        where = ("--topic", topic, "--to-offset", "1", "--execute")
        self.done("group", "reset", "turn", *where)
        [found] = self.document("task", "describe", *words)["jobs"]
        self.assertEqual(
            [(each["topic"], each["offset"], each["lag"]) for each in found["inputs"]],
            [(topic, 1, 1), ("words", None, None), ("words", None, None)],
        )
        outcome = self.execute("task", "reset", *words)
        self.assertIn(f"would delete topic {topic}, a repartition topic of turn", outcome.errors)
        self.done("task", "reset", *words, "--execute")
        topics = [each["topic"] for each in self.document("topic", "list")["topics"]]
        self.assertNotIn(topic, topics)
        places = self.document("group", "export", "turn")["offsets"]
        self.assertEqual({each["topic"] for each in places}, {"words"})

    def test_targets(self) -> None:
        """A reset may go elsewhere than to the beginning."""
        for words, expected in (
            (("--to-latest",), (3, 2)),
            (("--to-offset", "1"), (1, 1)),
            (("--to-earliest",), (0, 0)),
            (("--to-datetime", "2100-01-01"), (3, 2)),
        ):
            self.done(*self.task("reset", "--job", "count", "--execute", *words))
            self.assertEqual(tuple(self.positions().values()), expected, words)
        reason = self.failed(*self.task("reset", "--execute", "--to-offset", "9"))
        self.assertIn("words-0 holds 0 to 3, and not 9", reason)

    def test_members(self) -> None:
        """While the job runs a reset is refused, and nothing changes; a dry run says so."""
        consumer = Consumer(
            {"bootstrap.servers": self.broker.bootstrapServers, "group.id": "count"}
        )
        self.addCleanup(consumer.close)
        joined: list[object] = []
        consumer.subscribe(["words"], on_assign=lambda *_: joined.append(1))
        while not joined:
            consumer.poll(0.1)
        found = self.describe()
        self.assertEqual((found["state"], len(found["members"])), ("Stable", 1))
        owner = found["members"][0]["memberId"]
        self.assertEqual([each["member"] for each in found["inputs"]], [owner, owner])
        outcome = self.execute(*self.task("reset"))
        self.assertEqual(outcome.code, 0)
        self.assertIn("there are members in count", outcome.errors)
        reason = self.failed(*self.task("reset", "--execute"))
        self.assertIn(
            "there is 1 container of job count, which must end first. Nothing was changed", reason
        )
        self.assertEqual(self.positions(), {TopicPartition("words", 0): 2})
        self.assertEqual(len(os.listdir(os.path.join(self.state, "count"))), 2)

    def test_topicStays(self) -> None:
        """A changelog that cannot be deleted leaves all as it was, and the next reset goes on."""
        before = self.describe()
        self.broker.injectError("DeleteTopics", "TOPIC_AUTHORIZATION_FAILED", topic=CHANGELOG)
        reason = self.failed(*self.task("reset", "--job", "count", "--execute"))
        self.assertIn("the positions of job count stay", reason)
        self.assertEqual(self.describe(), before)
        self.done(*self.task("reset", "--job", "count", "--execute"))
        self.assertEqual(tuple(self.positions().values()), (0, 0))

    def test_folderStays(self) -> None:
        """A folder that cannot be removed is told of: the stores in it are of another time."""

        def refuse(folder: Path) -> None:
            raise PermissionError(13, "Permission denied")

        self.patch(shutil, "rmtree", refuse)
        reason = self.failed(*self.task("reset", "--job", "count", "--execute"))
        self.assertIn(f"{self.state}/count cannot be removed: Permission denied", reason)
