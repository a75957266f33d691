"""
Tests for L{pylogbroker.cli.kafka.groupoffsets}: export, import, shifts, and positions that a mirror
has translated, on a real broker.
"""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer

from pylogbroker.mirror.checkpoints import Checkpoint, checkpointsTopic
from pylogbroker.types import TopicPartition
from tests.cli.kafka.test_commands import TIMEOUT_SECONDS, CurrentCase

DRY = "nothing was changed; --execute does it\n"


class OffsetsCase(CurrentCase):
    """A topic C{t} with records 0 to 4 in partition 1, and none in partition 0."""

    def setUp(self) -> None:
        super().setUp()
        self.done(*["produce", "-", "--topic", "t", "--partition", "1"], input=b"0\n1\n2\n3\n4\n")

    def put(self, group: str, offset: int) -> None:
        """Where a group stands in partition 1."""
        words = ("--topic", "t", "--partition", "1", "--to-offset", str(offset), "--execute")
        self.done("group", "reset", group, *words)

    def exported(self, *words: str) -> list[str]:
        """The lines of an export."""
        return self.done("group", "export", *words).splitlines()


class RoundTripTests(OffsetsCase):
    """C{export} and C{import}."""

    def test_roundTrip(self) -> None:
        """What is exported is shown, and with C{--execute} set, when it is imported."""
        self.put("g", 2)
        self.put('a "b", c', 3)
        lines = self.exported()
        self.assertEqual(lines, ['"a ""b"", c",t,1,3', "g,t,1,2"])
        path = self.mktemp()
        outcome = self.execute("group", "export", "g", "--output", path)
        self.assertEqual((outcome.code, outcome.output), (0, b""))
        self.assertEqual(outcome.errors, "exported 1 offset of 1 group\n")
        self.assertEqual(Path(path).read_text(), "g,t,1,2\n")
        self.assertIn("cannot write", self.failed("group", "export", "--output", path))
        self.put("g", 5)
        outcome = self.execute("group", "import", path)
        self.assertEqual((outcome.code, outcome.errors), (0, DRY))
        row = outcome.output.decode().splitlines()[1].split()
        self.assertEqual(row, ["g", "t", "1", "5", "2", "-3"])
        self.assertEqual(self.exported("g"), ["g,t,1,5"])
        found = self.document("group", "import", path, "--execute")
        place = {"group": "g", "topic": "t", "partition": 1}
        self.assertEqual(found, {"changes": [{**place, "old": 5, "new": 2}], "executed": True})
        self.assertEqual(self.document("group", "export", "g")["offsets"], [{**place, "offset": 2}])
        text = "\n".join(lines).replace("t,1,3", "t,1,4").encode()
        self.done("group", "import", "-", "--execute", input=text)
        self.assertEqual(self.exported(), ['"a ""b"", c",t,1,4', "g,t,1,2"])

    def test_oneGroup(self) -> None:
        """Lines without a group, as Kafka's tool writes them for one, are for C{--group}."""
        text = b'"t",0,0\n\n"t",1,4\n'
        self.done("group", "import", "-", "--group", "new", "--execute", input=text)
        self.assertEqual(self.exported("new"), ["new,t,0,0", "new,t,1,4"])
        self.done("group", "import", "-", "--group", "g", "--execute", input=b"g,t,1,1\n")
        self.assertEqual(self.exported("g"), ["g,t,1,1"])

    def test_wrongLines(self) -> None:
        """A line that is wrong is named; nothing is set."""
        for text, words, reason in (
            (b"t,1,2\n", (), "line 1 of standard input: a line is GROUP,TOPIC,PARTITION,OFFSET"),
            (b"g,t,1,2\n\n/consumers/g/offsets/t/0-0:5\n", (), "line 3 of standard input"),
            (b"g,t,x,2\n", (), "'x' is no partition"),
            (b"g,t,1,-2\n", (), "'-2' is no offset"),
            (b"g,t,1,%d\n" % 2**63, (), "is no offset"),
            (b"g,t,1,2\ng,t,1,3\n", (), "line 2 of standard input: another line has offset 2"),
            (b"h,t,1,2\n", ("--group", "g"), "it is of the group h, and not of g"),
            (b'g,"t"x,1,2\n', (), "line 1 of standard input"),
            (b"", (), "standard input holds no offsets"),
            (b"\xff\n", (), "standard input is not UTF-8"),
            (b"g,u,1,2\n", (), "there is no topic u"),
            (b"g,t,7,2\n", (), "there is no partition t-7"),
            (b"g,t,1,6\n", (), "t-1 holds 0 to 5, and not 6"),
        ):
            outcome = self.execute("group", "import", "-", "--execute", *words, input=text)
            self.assertEqual((outcome.code, outcome.output), (1, b""), text)
            self.assertIn(reason, outcome.errors)
        self.assertEqual(self.exported(), [])
        self.done("group", "import", "-", "--execute", "--force", input=b"g,t,1,6\n")
        self.assertEqual(self.exported(), ["g,t,1,6"])

    def test_members(self) -> None:
        """Members are told of, and refuse the change; what was changed before them is named."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrapServers, "group.id": "g"})
        self.addCleanup(consumer.close)
        joined: list[object] = []
        consumer.subscribe(["t"], on_assign=lambda *_: joined.append(1))
        while not joined:
            consumer.poll(0.1)
        text = b"a,t,1,1\ng,t,1,1\n"
        outcome = self.execute("group", "import", "-", input=text)
        self.assertEqual(outcome.code, 0)
        self.assertIn("there are members in g", outcome.errors)
        outcome = self.execute("group", "import", "-", "--execute", input=text)
        self.assertEqual(outcome.code, 1)
        self.assertIn("changed are a; of g nothing was changed, or not all", outcome.errors)

    def test_wrongArguments(self) -> None:
        """Options of the other kind of cluster are errors."""
        self.wrong("group", "import", "-", "--group", "g", "--zookeeper", "h:1")
        self.wrong("group", "reset", "g", "--shift-by", "1", "--zookeeper", "h:1")


class ShiftTests(OffsetsCase):
    """C{reset --shift-by}."""

    def test_shift(self) -> None:
        """Forward or back, at most to an end; without a position there is nothing to shift."""
        self.put("g", 2)
        words = ("group", "reset", "g", "--partition", "1", "--topic", "t", "--shift-by")
        for number, expected in (("1", 3), ("-1", 1), ("9", 5), ("-9", 0)):
            [found] = self.document(*words, number)["changes"]
            self.assertEqual(found["new"], expected)
        self.assertIn(
            "no position in t-0",
            self.failed("group", "reset", "g", "--topic", "t", *words[-1:], "1"),
        )


class CheckpointTests(OffsetsCase):
    """C{translate} with the checkpoints that a mirror has written."""

    def checkpoint(
        self,
        *checkpoints: Checkpoint,
        alias: str = "east",
        removed: tuple[Checkpoint, ...] = (),
    ) -> None:
        """Write checkpoints, between what is none, and then tombstones for the removed ones."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrapServers})
        topic = checkpointsTopic(alias)
        producer.produce(topic, b"?", b"?", partition=0)
        for each in checkpoints:
            key, value = each.encode()
            producer.produce(topic, value, key, partition=0)
        producer.produce(topic, None, b"gone", partition=0)
        for each in removed:
            producer.produce(topic, None, each.encode()[0], partition=0)
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)

    def test_moves(self) -> None:
        """
        The last checkpoint of a partition counts. What has no place in the target is told, and a
        position behind the end begins at the beginning.
        """
        one, zero, away = (TopicPartition("t", 1), TopicPartition("t", 0), TopicPartition("u", 0))
        self.checkpoint(
            Checkpoint("g", one, 100, 1),
            Checkpoint("g", zero, 100, 7),
            Checkpoint("h", one, 100, 5),
            Checkpoint("g", away, 100, 1),
            Checkpoint("g", one, 104, 3),
        )
        words = ("group", "translate", "g", "--source-alias", "east")
        outcome = self.execute(*words)
        self.assertEqual(outcome.code, 0)
        rows = [line.split() for line in outcome.output.decode().splitlines()[1:]]
        self.assertEqual(rows, [["g", "t", "0", "-", "0", "-"], ["g", "t", "1", "-", "3", "-"]])
        for text in (
            "left out: east.checkpoints.internal-0 at offset 0",
            "the target has no partition u-0",
            "t-0 of the target ends at 0, and had reached 7 before",
            DRY,
        ):
            self.assertIn(text, outcome.errors)
        self.assertEqual(self.exported(), [])
        self.done(*words, "--execute", "--to-group", "moved")
        self.assertEqual(self.exported(), ["moved,t,0,0", "moved,t,1,3"])

    def test_tombstones(self) -> None:
        """
        A tombstone removes the earlier checkpoint of its key, and no other: one of another group or
        partition stays, and so does a later checkpoint.
        """
        one, zero = TopicPartition("t", 1), TopicPartition("t", 0)
        stays, goes = Checkpoint("g", one, 100, 2), Checkpoint("g", zero, 100, 0)
        self.checkpoint(stays, goes, removed=(goes, Checkpoint("h", one, 100, 2)))
        words = ("group", "translate", "g", "--source-alias", "east")
        rows = [line.split() for line in self.done(*words).splitlines()[1:]]
        self.assertEqual(rows, [["g", "t", "1", "-", "2", "-"]])
        self.checkpoint(removed=(stays,))
        self.assertIn("translated no positions of the group g", self.failed(*words))
        self.checkpoint(stays)
        rows = [line.split() for line in self.done(*words).splitlines()[1:]]
        self.assertEqual(rows, [["g", "t", "1", "-", "2", "-"]])

    def test_nothing(self) -> None:
        """Without a topic of checkpoints, or one of the group, there is an error."""
        self.assertIn(
            "no topic source.checkpoints.internal", self.failed("group", "translate", "g")
        )
        self.checkpoint(alias="source")
        self.assertIn(
            "translated no positions of the group g", self.failed("group", "translate", "g")
        )

    def test_wrongArguments(self) -> None:
        """The options name one kind of mirror."""
        current, former = ("--bootstrap-server", "h:1"), ("--zookeeper", "h:1")
        for words in (
            (*former, "--mirror-group", "m"),
            (*former, "--from", "h:2"),
            (*current, "--from", "h:2"),
            (*current, "--mirror-group", "m"),
            (*current, "--from", "h:2", "--mirror-group", "m", "--source-alias", "a"),
        ):
            self.wrong("group", "translate", "g", *words)
