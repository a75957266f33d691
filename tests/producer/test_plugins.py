"""
Tests for L{pylogbroker.producer.plugins}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    ConfigurationError,
    PylogbrokerError,
    QueueFullError,
    TimedOutError,
    UnknownOutcomeError,
)
from pylogbroker.producer.plugins import (
    CallbackHandler,
    QueueItem,
    callableOf,
    groupByPartition,
    loadPlugin,
)
from pylogbroker.records.messageset import encodeSet
from tests.producer.producercase import ClusterCase, ProducerCase


class Partitioner:
    """Has the method."""

    def partition(self, key: Any, count: int) -> int:
        return count - 1


class Demanding:
    """Cannot be made without arguments."""

    def __init__(self, argument: object) -> None:
        pass


def last(key: Any, count: int) -> int:
    """A function."""
    return count - 1


class LoadTests(SynchronousTestCase):
    """What a property names."""

    def refused(self, name: str, method: str | None = None) -> str:
        return str(
            self.assertRaises(
                ConfigurationError, loadPlugin, "some.key", name, {"built.in": 1}, method
            )
        )

    def test_builtIn(self) -> None:
        """Names of what is built in are not imported."""
        self.assertEqual(loadPlugin("k", "built.in", {"built.in": 1}), 1)

    def test_classOrFunction(self) -> None:
        """
        A class is made, and gives its method; a function is one; without a method the object itself
        is wanted.
        """
        for name in ("Partitioner", "last"):
            self.assertEqual(loadPlugin("k", f"{__name__}.{name}", {}, "partition")("key", 5), 4)
        self.assertIsInstance(loadPlugin("k", f"{__name__}.Partitioner", {}), Partitioner)

    def test_refused(self) -> None:
        """
        What cannot be imported, made, or called is a configuration error that names key, name and
        reason.
        """
        for name, why in (
            (
                "word",
                "some.key=word: a dotted name is needed, package.module.Class (built in: built.in)",
            ),
            ("no.such.module.Class", "cannot be imported"),
            (f"{__name__}.Nothing", "cannot be imported"),
            (f"{__name__}.Demanding", "cannot be made without arguments"),
        ):
            self.assertIn(why, self.refused(name, "partition"))
        self.assertIn(
            "neither a function nor has it a method partition",
            str(self.assertRaises(ConfigurationError, callableOf, "k", 7, "partition")),
        )
        self.assertIn(
            "cannot be imported",
            str(self.assertRaises(ConfigurationError, loadPlugin, "k", "no.such", {})),
        )


class CallbackHandlerTests(SynchronousTestCase):
    """The base class of callback handlers."""

    def test_doNothing(self) -> None:
        """Each gives back what it was given."""
        handler, item = CallbackHandler(), QueueItem("t", b"x")
        handler.init({})
        self.assertIs(handler.beforeEnqueue(item), item)
        handler.afterEnqueue(item, True)
        self.assertEqual(handler.afterDequeuingExistingData(item), [item])
        self.assertEqual(handler.afterDequeuingExistingData(None), [])
        self.assertEqual(handler.beforeSendingData([item]), [item])
        self.assertEqual(handler.lastBatchBeforeClose(), [])
        handler.close()


class Recorder(CallbackHandler):
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.last: list[QueueItem] = []

    def init(self, properties: Any) -> None:
        self.calls.append(("init", dict(properties)))

    def beforeEnqueue(self, item: QueueItem) -> QueueItem:
        self.calls.append(("beforeEnqueue", item.value))
        return QueueItem(item.topic, item.value + b"!", item.key)

    def afterEnqueue(self, item: QueueItem, isAdded: bool) -> None:
        self.calls.append(("afterEnqueue", item.value, isAdded))

    def afterDequeuingExistingData(self, item: QueueItem | None) -> list[QueueItem]:
        self.calls.append(("afterDequeuing", item and item.value))
        return [] if item is None or item.value == b"drop!" else [item]

    def beforeSendingData(self, batch: Any) -> Any:
        self.calls.append(("beforeSending", [item.value for item in batch]))
        return [*batch, QueueItem("extra", b"extra")]

    def lastBatchBeforeClose(self) -> list[QueueItem]:
        self.calls.append(("lastBatch",))
        return self.last

    def close(self) -> None:
        self.calls.append(("close",))


class HandlerTests(ProducerCase):
    """Seven handler."""

    def test_order(self) -> None:
        """
        0.7's order, but for close, which comes last (gotcha 34); what handler give is what is sent.
        """
        handler = Recorder()
        handler.last = [QueueItem("t", b"last")]
        producer = self.producer(
            {"batch.size": 10, "queue.time": 1000, "callback.handler.props": "a=b"},
            callbackHandler=handler,
        )
        sendings = [producer.send("t", b"x"), producer.send("t", b"drop")]
        self.cluster.pass_(1)
        for sending in sendings:
            self.successResultOf(sending)
        self.close(producer)
        self.assertEqual(
            handler.calls,
            [
                ("init", {"a": "b"}),
                ("beforeEnqueue", b"x"),
                ("afterEnqueue", b"x!", True),
                ("afterDequeuing", b"x!"),
                ("beforeEnqueue", b"drop"),
                ("afterEnqueue", b"drop!", True),
                ("afterDequeuing", b"drop!"),
                ("afterDequeuing", None),
                ("beforeSending", [b"x!"]),
                ("lastBatch",),
                ("beforeSending", [b"last"]),
                ("close",),
            ],
        )
        self.assertEqual(self.a.payloads("t"), [b"x!", b"last"])
        self.assertEqual(self.a.payloads("extra"), [b"extra"] * 2)

    def test_full(self) -> None:
        """afterEnqueue hears of a full queue."""
        handler = Recorder()
        producer = self.producer(
            {"queue.size": 1, "queue.enqueueTimeout.ms": 0}, callbackHandler=handler
        )
        producer.send("t", b"1")
        self.failureResultOf(producer.send("t", b"2"), QueueFullError)
        self.assertEqual(handler.calls[-1], ("afterEnqueue", b"2!", False))
        self.close(producer)

    def test_doNothing(self) -> None:
        """Hooks that are only inherited change nothing."""
        producer = self.producer({"batch.size": 2}, callbackHandler=CallbackHandler())
        producer.send("t", [b"1", b"2"])
        self.turn()
        self.assertEqual(self.a.payloads(), [b"1", b"2"])
        self.close(producer)

    def test_failing(self) -> None:
        """A hook that fails is told, and costs at most its own messages."""

        class Failing(CallbackHandler):
            def __init__(self) -> None:
                self.fails = ""

            def _look(self, name: str, result: Any) -> Any:
                if name == self.fails:
                    raise ZeroDivisionError(name)
                return result

            def beforeEnqueue(self, item: Any) -> Any:
                return self._look("beforeEnqueue", item)

            def afterEnqueue(self, item: Any, isAdded: bool) -> Any:
                return self._look("afterEnqueue", None)

            def afterDequeuingExistingData(self, item: Any) -> Any:
                return self._look("poll", [item] if item else [])

            def beforeSendingData(self, batch: Any) -> Any:
                return self._look("beforeSending", batch)

            def lastBatchBeforeClose(self) -> Any:
                return self._look("last", [])

            def close(self) -> None:
                self._look("last", None)

        handler = Failing()
        producer = self.producer({"batch.size": 1}, callbackHandler=handler)
        for name in ("beforeEnqueue", "beforeSending"):
            handler.fails = name
            self.failureResultOf(producer.send("t", b"x"), PylogbrokerError)
        for name in ("afterEnqueue", "poll"):
            handler.fails = name
            sending = producer.send("t", name.encode())
            self.turn()
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"afterEnqueue", b"poll"])
        handler.fails = "last"
        self.close(producer)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 5)

    def test_eventHandler(self) -> None:
        """
        An event sender of the application's own gets batches, the way to the broker and the
        encoder, and says what became of them.
        """
        calls: list[Any] = []

        class Handler:
            def init(self, properties: Any) -> None:
                calls.append(("init", dict(properties)))

            def handle(self, batch: Any, sender: Any, encoder: Any) -> Any:
                payloads = [encoder(item.value) for item in batch]
                calls.append(payloads)
                if payloads == [b"bad"]:
                    raise ZeroDivisionError
                if payloads == [b"one"]:
                    return sender.send("mine", 3, encodeSet(payloads))
                if payloads == [b"never"]:
                    return Deferred()
                return sender.multiSend([("mine", 4, encodeSet(payloads))])

            def close(self) -> None:
                calls.append("close")

        producer = self.producer(
            {"batch.size": 1, "event.handler.props": "x=y"}, eventHandler=Handler()
        )
        sendings = [producer.send("t", value) for value in (b"one", b"two")]
        self.turn()
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.log, [("mine", 3, b"one"), ("mine", 4, b"two")])
        self.failureResultOf(producer.send("t", b"bad"), ZeroDivisionError)
        never = producer.send("t", b"never")
        closing = producer.close(500)
        self.cluster.pass_(1)
        self.failureResultOf(closing, TimedOutError)
        self.failureResultOf(never, UnknownOutcomeError)
        self.assertEqual((calls[0], calls[-1]), (("init", {"x": "y"}), "close"))
        self.books()

    def test_inPlace(self) -> None:
        """
        A hook may change the batch that it is given, and an event sender may empty it: it is
        theirs, and all are told all the same.
        """

        class Adding(CallbackHandler):
            def beforeSendingData(self, batch: Any) -> Any:
                batch.append(QueueItem("t", b"more", partition=batch[0].partition))
                return batch

        class Choosing(CallbackHandler):
            def beforeSendingData(self, batch: Any) -> Any:
                batch[:] = [item for item in batch if item.value != b"1"]
                return batch

        class Emptying:
            def init(self, properties: Any) -> None:
                pass

            def handle(self, batch: Any, sender: Any, encoder: Any) -> None:
                batch.clear()

            def close(self) -> None:
                pass

        arguments: list[dict[str, Any]] = [
            {"callbackHandler": Adding()},
            {"callbackHandler": Choosing()},
            {"eventHandler": Emptying()},
        ]
        for each, payloads in zip(arguments, ([b"1", b"2", b"more"], [b"2"], []), strict=True):
            self.a.log.clear()
            producer = self.producer({"batch.size": 2}, **each)
            sendings = [producer.send("t", value) for value in (b"1", b"2")]
            self.turn()
            for sending in sendings:
                self.successResultOf(sending)
            self.assertEqual(self.a.payloads(), payloads)
            self.close(producer)

    def test_twice(self) -> None:
        """
        A handler may return a message twice: it is sent twice, and its sender learns of it once.
        """

        class Doubling(CallbackHandler):
            def afterDequeuingExistingData(self, item: QueueItem | None) -> list[QueueItem]:
                return [] if item is None else [item, item]

            def beforeSendingData(self, batch: Any) -> Any:
                return [*batch, batch[0]]

        producer = self.producer({"batch.size": 3}, callbackHandler=Doubling())
        sendings = [producer.send("t", value) for value in (b"1", b"2")]
        self.turn()
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"1", b"1", b"2", b"2", b"1"])
        self.assertEqual(producer.counters.batchCount, 1)
        self.books()
        self.close(producer)

    def test_items(self) -> None:
        """A message shows its topic and partition."""
        self.assertIn("b-1", repr(QueueItem("b", b"x", None, 1)))

    def test_named(self) -> None:
        """Hooks and event senders can be named by their classes."""
        producer = self.producer(
            {"callback.handler": "pylogbroker.producer.plugins.CallbackHandler"}
        )
        self.assertIsInstance(producer._callbackHandler, CallbackHandler)
        self.close(producer)
        self.assertRaises(ConfigurationError, self.producer, {"event.handler": "no.such"})


class GroupTests(SynchronousTestCase):
    """Grouping."""

    def test_groups(self) -> None:
        """
        AsyncProducerTest.testCollateEvents: by topic and partition, in order of first appearance,
        order inside a group kept.
        """
        items = [
            QueueItem(topic, index, None, partition)
            for index, (topic, partition) in enumerate([("b", 1), ("a", 0), ("b", 0), ("b", 1)])
        ]
        self.assertEqual(groupByPartition(items), [[0, 3], [1], [2]])


class ClusterTests(ClusterCase):
    """Hooks where brokers come and go."""

    def test_brokerVanishes(self) -> None:
        """
        What a broker that vanished has left goes by the handler, and by the event sender, like
        everything else: nothing has seen it yet.
        """

        class Sealing(CallbackHandler):
            def beforeSendingData(self, batch: Any) -> Any:
                for item in batch:
                    item.value = b"sealed"
                return batch

        class Handler:
            def init(self, properties: Any) -> None:
                pass

            def handle(self, batch: Any, sender: Any, encoder: Any) -> Any:
                return sender.send(
                    "by the sender", 0, encodeSet([encoder(item.value) for item in batch])
                )

            def close(self) -> None:
                pass

        arguments: list[dict[str, Any]] = [
            {"callbackHandler": Sealing()},
            {"eventHandler": Handler()},
        ]
        for each, log in zip(
            arguments, ([("t", 0, b"sealed")], [("by the sender", 0, b"plain")]), strict=True
        ):
            self.b.log.clear()
            self.register(0, "a:1")
            producer = self.clustered({"producer.type": "async", "batch.size": 100}, **each)
            sending = producer.send("t", b"plain")
            self.settle()
            self.register(1, "b:1")
            self.unregister(0)
            self.successResultOf(sending)
            self.assertEqual((self.a.log, self.b.log), ([], log))
            self.close(producer)
            self.unregister(1)

    def test_ordered(self) -> None:
        """Handlers see the messages in the order of the calls, whatever their partitions."""

        class Recording:
            def init(self, properties: Any) -> None: ...
            def close(self) -> None: ...

            def handle(self, batch: Any, sender: Any, encoder: Any) -> None:
                seen.append([(item.value, item.partition) for item in batch])

        class Looking(CallbackHandler):
            def beforeSendingData(self, batch: Any) -> Any:
                seen.append([(item.value, item.partition) for item in batch])
                return batch

        seen: list[Any] = []
        self.register(0, "a:1")
        self.topic("t", 0, 2)
        given: dict[str, Any] = {"partitioner": lambda key, count: int(key)}
        for handler in ({"eventHandler": Recording()}, {"callbackHandler": Looking()}):
            producer = self.clustered({"producer.type": "async"}, **given, **handler)
            for value, key in ((b"a", "0"), (b"b", "1"), (b"c", "0")):
                producer.sendNoWait("t", value, key)
            self.settle()
            producer.flush()
            self.assertEqual(seen.pop(), [(b"a", 0), (b"b", 1), (b"c", 0)])
            self.settle()
            self.close(producer)
        self.assertEqual(self.a.log, [("t", 0, b"a"), ("t", 0, b"c"), ("t", 1, b"b")])

    def test_keepsToTheEnd(self) -> None:
        """
        A handler that keeps all messages gives them back in the last batch, even if the producer is
        closed before it has found the brokers.
        """

        class Keeping(CallbackHandler):
            def __init__(self) -> None:
                self.kept: list[QueueItem] = []

            def afterDequeuingExistingData(self, item: QueueItem | None) -> list[QueueItem]:
                self.kept += [item] if item else []
                return []

            def lastBatchBeforeClose(self) -> list[QueueItem]:
                return self.kept

        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async"}, callbackHandler=Keeping())
        for value in (b"1", b"2", b"3"):
            producer.sendNoWait("t", value)
        closing = producer.close()
        self.settle()
        self.successResultOf(closing)
        self.assertEqual(self.a.payloads(), [b"1", b"2", b"3"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_changesTopic(self) -> None:
        """A hook may send one message of a call elsewhere: it goes to a partition of that topic."""

        class Sorting(CallbackHandler):
            def beforeEnqueue(self, item: QueueItem) -> QueueItem:
                return QueueItem("few", item.value) if item.value == b"2" else item

        self.register(0, "a:1")
        self.topic("many", 0, 9)
        self.topic("few", 0, 1)
        producer = self.clustered(
            {"producer.type": "async"}, callbackHandler=Sorting(), random=lambda: 0.99
        )
        sending = producer.send("many", [b"1", b"2", b"3"])
        self.settle()
        producer.flush()
        self.done(sending)
        self.assertEqual(self.a.log, [("many", 8, b"1"), ("many", 8, b"3"), ("few", 0, b"2")])
        self.close(producer)
