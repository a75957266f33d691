"""
Steps without windows: what they do to messages, their names, the topics and stores of their job,
and what is refused.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError, TaskFailedError
from pylogbroker.tasks.job import MEMORY, SKIP, Input, Output
from pylogbroker.tasks.serdes import BYTES, INTEGER, JSON, LONG, STRING
from pylogbroker.tasks.streams import (
    JoinWindow,
    KStream,
    KTable,
    SessionWindow,
    TumblingWindow,
    ValueAndTimestamp,
    buildJob,
    stream,
    table,
)
from pylogbroker.testing.tasktestdriver import TaskTestDriver
from tests.tasks.streams.drivers import outputOf, sentTo

NUMBERS = [("in", "a", 1, 10), ("in", "b", 2, 20), ("in", "c", 3, 30)]


def numbers() -> KStream:
    """The stream that most tests begin with."""
    return stream("in", STRING, INTEGER)


def every(_key: Any, _message: Any) -> bool:
    return True


def splitWords(_key: Any, line: str) -> list[tuple[str, int]]:
    return [(word, 1) for word in line.split()]


def wordCount() -> KTable:
    """The word count."""
    words = stream("lines", message=STRING).flatMap(splitWords, STRING, INTEGER)
    return words.groupByKey().count("counts")


class StatelessTests(SynchronousTestCase):
    """Steps that see one message at a time."""

    def sent(self, given: KStream, *messages: tuple[str, Any, Any, int]) -> list[Any]:
        return outputOf(buildJob("job", given.to("out")), *(messages or NUMBERS))

    def test_filter(self) -> None:
        """Some messages go on as they are, with their timestamps."""
        odd = numbers().filter(lambda _key, number: number % 2)
        self.assertEqual(self.sent(odd), [("a", 1, 10), ("c", 3, 30)])
        even = numbers().filterNot(lambda _key, number: number % 2)
        self.assertEqual(self.sent(even), [("b", 2, 20)])

    def test_map(self) -> None:
        """Keys, messages, or both are replaced."""
        mapped = numbers().map(lambda key, number: (number, key * 2), INTEGER, STRING)
        self.assertEqual(self.sent(mapped), [(1, "aa", 10), (2, "bb", 20), (3, "cc", 30)])
        values = numbers().mapValues(lambda number: -number, INTEGER)
        self.assertEqual(self.sent(values), [("a", -1, 10), ("b", -2, 20), ("c", -3, 30)])
        keys = numbers().selectKey(lambda key, number: f"{key}{number}", STRING)
        self.assertEqual(self.sent(keys), [("a1", 1, 10), ("b2", 2, 20), ("c3", 3, 30)])

    def test_flatMap(self) -> None:
        """A message becomes several, or none."""
        pairs = numbers().flatMap(
            lambda key, number: [(key + str(each), each) for each in range(1, number)],
            STRING,
            INTEGER,
        )
        self.assertEqual(self.sent(pairs), [("b1", 1, 20), ("c1", 1, 30), ("c2", 2, 30)])
        values = numbers().flatMapValues(range, INTEGER)
        wanted = [("a", 0, 10), *(("b", each, 20) for each in range(2))]
        self.assertEqual(self.sent(values, *NUMBERS[:2]), wanted)

    def test_peek(self) -> None:
        """A function is told of each message, which stays as it is."""
        told = []
        peeked = numbers().peek(lambda key, number: told.append((key, number)))
        self.assertEqual(len(self.sent(peeked)), 3)
        self.assertEqual(told, [("a", 1), ("b", 2), ("c", 3)])

    def test_merge(self) -> None:
        """Messages of both streams; a stream that is used twice gives its messages to both uses."""
        other = stream("other", STRING, INTEGER)
        merged = numbers().merge(other)
        self.assertEqual(
            self.sent(merged, ("other", "x", 9, 1), *NUMBERS[:1]), [("x", 9, 1), ("a", 1, 10)]
        )
        twice = numbers()
        self.assertEqual(self.sent(twice.merge(twice), *NUMBERS[:1]), [("a", 1, 10), ("a", 1, 10)])

    def test_tombstones(self) -> None:
        """No key and no message reach the functions as None."""
        values = numbers().mapValues(lambda number: -1 if number is None else number, INTEGER)
        self.assertEqual(self.sent(values, ("in", None, None, 5)), [(None, -1, 5)])

    def test_headers(self) -> None:
        """Those of a message go with what becomes of it, and a missing timestamp stays missing."""
        with TaskTestDriver(buildJob("job", numbers().to("out"))) as driver:
            driver.pipeInput("in", "a", 1, -1, headers=[("trace", b"7")])
            [sent] = driver.readRecords("out")
        self.assertEqual(sent.headers, (("trace", b"7"),))
        self.assertIsNone(sent.timestamp)

    def test_timestamp(self) -> None:
        """A stream takes the time of its messages from what is in them."""
        given = stream("in", STRING, INTEGER, timestamp=lambda _key, number: number * 1000)
        self.assertEqual(self.sent(given), [("a", 1, 1000), ("b", 2, 2000), ("c", 3, 3000)])

    def test_severalResults(self) -> None:
        """A job has several outputs, and a topic is written by several steps."""
        given = numbers()
        odd = given.filter(lambda _key, number: number % 2)
        job = buildJob("job", odd.to("odd"), given.to("all"), odd.to("all"))
        self.assertEqual([each.topic for each in job.outputs], ["odd", "all"])
        with TaskTestDriver(job) as driver:
            for topic, key, message, timestamp in NUMBERS[:2]:
                driver.pipeInput(topic, key, message, timestamp)
            self.assertEqual(driver.readOutput("odd"), [("a", 1)])
            self.assertEqual(driver.readOutput("all"), [("a", 1), ("a", 1), ("b", 2)])


class AggregationTests(SynchronousTestCase):
    """Counts, reductions and aggregations without windows."""

    def test_wordCount(self) -> None:
        """Each word is counted in one task, which sends each count."""
        job = buildJob("words", wordCount().toStream().to("out"))
        with TaskTestDriver(job, 3) as driver:
            driver.pipeInput("lines", None, "to be or not to be", 7)
            sent = sentTo(driver, "out")
            stored = [entry for each in range(3) for entry in driver.getStore("counts", each).all()]
        counts = {"to": 2, "be": 2, "or": 1, "not": 1}
        self.assertEqual(dict(stored), {key: (count, 7) for key, count in counts.items()})
        self.assertIsInstance(stored[0][1], ValueAndTimestamp)
        self.assertEqual(
            sorted(sent), sorted([*((key, 1, 7) for key in counts), *[("to", 2, 7), ("be", 2, 7)]])
        )

    def test_reduce(self) -> None:
        """The first message is the first value; the timestamp is the greatest one."""
        largest = numbers().groupByKey().reduce(max)
        job = buildJob("job", largest.toStream().to("out"))
        sent = outputOf(job, ("in", "a", 3, 10), ("in", "a", 1, 30), ("in", "a", 5, 20))
        self.assertEqual(sent, [("a", 3, 10), ("a", 3, 30), ("a", 5, 30)])

    def test_aggregate(self) -> None:
        """A value that becomes None is removed, and begins anew."""

        def add(key: str, number: int, found: list[int]) -> list[int] | None:
            return None if number == 0 else [*found, number]

        lists = numbers().groupByKey().aggregate(list, add, JSON, "lists")
        with TaskTestDriver(buildJob("job", lists.toStream().to("out"))) as driver:
            for number in (0, 1, 2, 0, 3):
                driver.pipeInput("in", "a", number, number)
            self.assertEqual(
                sentTo(driver, "out"),
                [("a", [1], 1), ("a", [1, 2], 2), ("a", None, 2), ("a", [3], 3)],
            )
            self.assertEqual(list(driver.getStore("lists").all()), [("a", ([3], 3))])

    def test_dropped(self) -> None:
        """Messages without a key, or without a message, are counted and go no further."""
        counts = numbers().groupByKey().count("counts")
        with TaskTestDriver(buildJob("job", counts.toStream().to("out"))) as driver:
            driver.pipeInput("in", None, 1)
            driver.pipeInput("in", "a", None)
            driver.pipeInput("in", "a", 1)
            self.assertEqual(driver.readOutput("out"), [("a", 1)])
            self.assertEqual(driver.countOf("dropped-counts"), 2)

    def test_droppedBeforeRepartition(self) -> None:
        """A message whose new key is None has no task."""
        counts = numbers().groupBy(lambda _key, _number: None, STRING, "by").count()
        with TaskTestDriver(buildJob("job", counts.toStream().to("out"))) as driver:
            driver.pipeInput("in", "a", 1)
            self.assertEqual(driver.readOutput("out"), [])
            self.assertEqual(driver.countOf("dropped-by-repartition"), 1)

    def test_failed(self) -> None:
        """A message that fails in a later step has counted nothing."""

        def refuse(count: int) -> int:
            if count == 2:
                raise ValueError("two")
            return count

        counts = numbers().groupByKey().count("counts").mapValues(refuse, LONG)
        job = buildJob("job", counts.toStream().to("out"), onError=SKIP)
        with TaskTestDriver(job) as driver:
            for _ in range(3):
                driver.pipeInput("in", "a", 1, 5)
            self.assertEqual(driver.readOutput("out"), [("a", 1)])
            self.assertEqual(driver.getStore("counts").get("a"), (1, 5))
            self.assertEqual(len(driver.leftOut), 2)


class TableTests(SynchronousTestCase):
    """Tables of topics and of aggregations."""

    def test_changes(self) -> None:
        """The last message of a key counts; a tombstone removes it, and nothing else."""
        given = table("in", STRING, INTEGER)
        with TaskTestDriver(buildJob("job", given.toStream().to("out"))) as driver:
            for key, number in (("a", 1), ("a", 2), ("b", None), ("a", None), (None, 1)):
                driver.pipeInput("in", key, number, 5)
            self.assertEqual(driver.readOutput("out"), [("a", 1), ("a", 2), ("a", None)])
            self.assertEqual(list(driver.getStore("in").all()), [])
            self.assertEqual(driver.countOf("dropped-in"), 1)

    def test_filter(self) -> None:
        """What leaves the table is removed; what was never in it is not told of."""
        odd = table("in", STRING, INTEGER).filter(lambda _key, number: number % 2)
        job = buildJob("job", odd.toStream().to("out"))
        messages = [("in", "a", each, each) for each in (2, 3, 4)]
        self.assertEqual(outputOf(job, *messages), [("a", 3, 3), ("a", None, 4)])

    def test_mapValues(self) -> None:
        """Values are replaced, and None by a removal."""
        halves = table("in", STRING, INTEGER).mapValues(
            lambda number: number // 2 if number % 2 == 0 else None, INTEGER
        )
        job = buildJob("job", halves.toStream().to("out"))
        messages = [("in", "a", each, each) for each in (1, 2, 3, 4)]
        self.assertEqual(outputOf(job, *messages), [("a", 1, 2), ("a", None, 3), ("a", 2, 4)])


class JobTests(SynchronousTestCase):
    """The job that steps become."""

    def test_names(self) -> None:
        """A step has the name it was given, or that of its kind or topic, with a number."""
        given = numbers().filter(every).filter(every, name="mine").filter(every).filter(every)
        job = buildJob("job", given.to("out"), numbers().to("out"))
        self.assertEqual(
            [each.name for each in job.steps],
            ["in", "filter", "mine", "filter-2", "filter-3", "to", "in-2", "to-2"],
        )
        again = buildJob("other", given.to("out"))
        self.assertEqual([each.name for each in again.steps][1:3], ["filter", "mine"])

    def test_givenNames(self) -> None:
        """A name that was given is not used for another step."""
        given = numbers().filter(every).mapValues(abs, INTEGER, name="filter")
        job = buildJob("job", given.to("out"))
        self.assertEqual([each.name for each in job.steps], ["in", "filter-2", "filter", "to"])

    def test_wordCount(self) -> None:
        """A changed key gets a repartition, an aggregation a store; parents come first."""
        job = buildJob("words", wordCount().toStream().to("out"), config={"a": "b"}, engine=MEMORY)
        self.assertEqual(job.inputs, (Input("lines", BYTES, STRING),))
        self.assertEqual(job.outputs, (Output("out", STRING, LONG),))
        [repartition] = job.repartitions
        self.assertEqual(job.repartitionTopicOf(repartition), "words-flatMap-repartition")
        self.assertEqual((repartition.key, repartition.message), (STRING, INTEGER))
        [store] = job.stores
        self.assertEqual((store.name, store.engine), ("counts", MEMORY))
        self.assertEqual(job.config, {"a": "b"})
        self.assertFalse(job.isAsync)
        self.assertEqual(
            [(each.name, each.kindName, [one.name for one in each.parents]) for each in job.steps],
            [
                ("lines", "stream", []),
                ("flatMap", "flatMap", ["lines"]),
                ("flatMap-repartition", "repartition", ["flatMap"]),
                ("counts", "count", ["flatMap-repartition"]),
                ("toStream", "toStream", ["counts"]),
                ("to", "to", ["toStream"]),
            ],
        )
        numbers = [each.number for each in job.steps]
        self.assertEqual(numbers, list(range(6)))

    def test_sharedRepartition(self) -> None:
        """Two groupings of one stream have one repartition; equal keys need none."""
        keyed = numbers().selectKey(lambda _key, number: number, INTEGER, name="by").filter(every)
        job = buildJob("job", keyed.groupByKey().count(), keyed.groupByKey().reduce(max))
        self.assertEqual([each.name for each in job.repartitions], ["filter"])
        self.assertEqual(buildJob("job", numbers().groupByKey().count()).repartitions, ())
        mine = keyed.repartition("mine").groupByKey().count()
        self.assertEqual([each.name for each in buildJob("job", mine).repartitions], ["mine"])

    def test_copartitions(self) -> None:
        """What meets by its keys must have equally many partitions; what does not, need not."""
        left, right, third = (stream(each, STRING, STRING) for each in ("a", "b", "c"))

        def groups(*results: KTable | KStream) -> tuple[tuple[str, ...], ...]:
            return tuple(tuple(each) for each in buildJob("job", *results).copartitions)

        self.assertEqual(groups(left.merge(right)), ())
        self.assertEqual(groups(left.merge(right).groupByKey().count()), (("a", "b"),))
        self.assertEqual(groups(left.groupByKey().count(), right.groupByKey().count()), ())
        window = JoinWindow(1, 1)
        joined = left.join(right, str.__add__, window, STRING)
        self.assertEqual(groups(joined), (("a", "b"),))
        self.assertEqual(groups(joined.join(third, str.__add__, window)), (("a", "b", "c"),))
        rekeyed = left.selectKey(lambda _key, text: text, STRING, "by").join(
            right, str.__add__, window, STRING
        )
        self.assertEqual(groups(rekeyed), (("by", "b"),))
        self.assertEqual(groups(rekeyed, joined), (("a", "b", "by"),))

    def test_sameTopic(self) -> None:
        """A topic that two steps read is one input, and each of them gets its messages."""
        first, second = numbers().filterNot(lambda *_: False), numbers()
        job = buildJob("job", first.to("out"), second.to("out"))
        self.assertEqual(job.inputs, (Input("in", STRING, INTEGER),))
        self.assertEqual(outputOf(job, ("in", "a", 1, 1)), [("a", 1, 1), ("a", 1, 1)])

    def test_tableIsBootstrapped(self) -> None:
        """The topic of a table is read first."""
        other = table("t", STRING, STRING)
        job = buildJob("job", numbers().join(other, lambda mine, its: its, message=STRING).to("o"))
        self.assertEqual(
            [(each.topic, each.isBootstrap) for each in job.inputs], [("t", True), ("in", False)]
        )

    def test_renamed(self) -> None:
        """A job beside the old one runs the same steps."""
        job = buildJob("words", wordCount().toStream().to("out")).renamed("v2")
        with TaskTestDriver(job, 2) as driver:
            driver.pipeInput("lines", None, "be")
            self.assertEqual(driver.readOutput("out.v2"), [("be", 1)])

    def test_repr(self) -> None:
        """Streams and tables say of which step they are."""
        self.assertEqual(repr(numbers().filter(every)), "<KStream of filter>")
        self.assertEqual(repr(wordCount()), "<KTable of counts>")


class RefusalTests(SynchronousTestCase):
    """What is no job, with the step that is wrong."""

    def refused(self, reason: str, *results: Any) -> None:
        with self.assertRaises(ConfigurationError) as caught:
            buildJob("job", *results)
        self.assertIn(reason, str(caught.exception))

    def test_results(self) -> None:
        """A job without a result."""
        self.refused("job job: it has no result")

    def test_names(self) -> None:
        """Two steps of one name."""
        given = numbers().filter(every, name="x").filter(every, name="x")
        self.refused("two steps are named x", given.to("out"))

    def test_serdes(self) -> None:
        """A serde that a store, a repartition or a topic needs."""
        mapped = numbers().map(lambda key, number: (key, number), name="swap")
        self.refused("step to: the serde of its keys is not known: give key=", mapped.to("out"))
        self.refused("step swap-repartition: the serde of its keys", mapped.groupByKey().count())
        mapped = numbers().mapValues(str, name="text")
        self.refused("step to: the serde of its messages is not known", mapped.to("out"))
        self.refused("step reduce: the serde of its values", mapped.groupByKey().reduce(max))
        lists = numbers().groupByKey().aggregate(list, lambda *_: [])
        self.refused("step aggregate: the serde of its values", lists)
        joined = numbers().join(mapped, lambda *_: 1, JoinWindow(1, 1))
        self.refused("step join: the serde of its messages is not known", joined)
        late = mapped.groupByKey().window(TumblingWindow(5)).lateTo("late").count()
        self.refused("step count: the serde of its late messages", late)
        other = stream("other", INTEGER, INTEGER)
        joined = numbers().join(other, max, JoinWindow(1, 1))
        self.refused("step join: it joins keys of string with keys of integer", joined)
        merged = numbers().merge(stream("other", BYTES, INTEGER))
        self.refused("step to: the serde of its keys", merged.to("out"))

    def test_topics(self) -> None:
        """A topic that is read or written in two ways, or both read and written."""
        other = stream("in", BYTES, BYTES)
        self.refused("topic in is read in two ways", numbers().to("x"), other.to("y"))
        given = table("in", STRING, INTEGER)
        self.refused("topic in is read in two ways", numbers().to("x"), given.toStream().to("y"))
        self.refused("it reads topic in, and writes it", numbers().to("in"))
        text = numbers().mapValues(str, STRING)
        self.refused("topic out is written with other serdes", numbers().to("out"), text.to("out"))

    def test_functions(self) -> None:
        """What is no function, or waits."""

        async def wait(key: Any, message: Any) -> bool:
            return True

        given: Any = numbers()
        other: Any = table("t")
        reading: Any = stream
        for call, reason in (
            (lambda: given.filter(wait), "wait is a coroutine function"),
            (lambda: reading("x", timestamp=wait), "step x: wait is a coroutine function"),
            (lambda: given.mapValues(5, name="x"), "step x: 5 is no function"),
            (lambda: other.filter(wait), "wait is a coroutine function"),
            (lambda: given.groupByKey().aggregate(list, None), "None is no function"),
            (lambda: given.groupByKey().reduce("max"), "'max' is no function"),
            (lambda: given.join(other, 1), "1 is no function"),
        ):
            with self.assertRaises(ConfigurationError) as caught:
                call()
            self.assertIn(reason, str(caught.exception))

    def test_windows(self) -> None:
        """A window where there is none, or of the wrong kind."""
        given: Any = numbers()
        grouped = given.groupByKey()
        other, tables = stream("b", STRING, INTEGER), table("t", STRING, INTEGER)
        for call, reason in (
            (lambda: grouped.window(JoinWindow(1, 1)), "is no window in which messages are"),
            (lambda: grouped.window(TumblingWindow(1), "never"), "emit='never' is none of"),
            (
                lambda: grouped.window(SessionWindow(1)).aggregate(list, lambda *_: [], None, JSON),
                "it needs a merger",
            ),
            (lambda: given.join(other, max, SessionWindow(1)), "joined in a JoinWindow"),
            (lambda: given.join(other, max), "joined in a JoinWindow, not None"),
            (
                lambda: given.join(tables, max, JoinWindow(1, 1)),
                "with a table there is no window",
            ),
            (lambda: given.outerJoin(tables, max, None), "no outer join with a table"),
        ):
            with self.assertRaises(ConfigurationError) as caught:
                call()
            self.assertIn(reason, str(caught.exception))

    def test_negativeTimestamp(self) -> None:
        """A message without a time fails where a window needs it."""
        counts = numbers().groupByKey().window(TumblingWindow(5)).count("counts")
        with TaskTestDriver(buildJob("job", counts)) as driver:
            with self.assertRaises(TaskFailedError) as caught:
                driver.pipeInput("in", "a", 1, -1)
            self.assertIn("step counts needs the time of messages", str(caught.exception))
