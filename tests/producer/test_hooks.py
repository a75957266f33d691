"""
Tests for L{pylogbroker.producer.hooks}.
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
from pylogbroker.producer.batches import QueueItem
from pylogbroker.producer.hooks import Hooks
from pylogbroker.records.messageset import encodeSet
from tests.producer.producercase import ClusterCase, ProducerCase


class HooksTests(SynchronousTestCase):
    """Hooks to inherit from."""

    def test_doNothing(self) -> None:
        """Each gives back what it was given."""
        hooks, item = Hooks(), QueueItem("t", b"x")
        hooks.init({})
        self.assertIs(hooks.beforeEnqueue(item), item)
        hooks.afterEnqueue(item, True)
        self.assertEqual(hooks.afterDequeuingExistingData(item), [item])
        self.assertEqual(hooks.afterDequeuingExistingData(None), [])
        self.assertEqual(hooks.beforeSendingData([item]), [item])
        self.assertEqual(hooks.lastBatchBeforeClose(), [])
        hooks.close()


class Recorder(Hooks):
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


class HookTests(ProducerCase):
    """Seven hooks."""

    def test_order(self) -> None:
        """0.7's order, but for close, which comes last (gotcha 34); what hooks give is what is sent."""
        hooks = Recorder()
        hooks.last = [QueueItem("t", b"last")]
        producer = self.producer(
            {"batch.size": 10, "queue.time": 1000, "callback.handler.props": "a=b"}, hooks=hooks
        )
        sendings = [producer.send("t", b"x"), producer.send("t", b"drop")]
        self.cluster.pass_(1)
        for sending in sendings:
            self.successResultOf(sending)
        self.close(producer)
        self.assertEqual(
            hooks.calls,
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
        hooks = Recorder()
        producer = self.producer({"queue.size": 1, "queue.enqueueTimeout.ms": 0}, hooks=hooks)
        producer.send("t", b"1")
        self.failureResultOf(producer.send("t", b"2"), QueueFullError)
        self.assertEqual(hooks.calls[-1], ("afterEnqueue", b"2!", False))
        self.close(producer)

    def test_doNothing(self) -> None:
        """Hooks that are only inherited change nothing."""
        producer = self.producer({"batch.size": 2}, hooks=Hooks())
        producer.send("t", [b"1", b"2"])
        self.turn()
        self.assertEqual(self.a.payloads(), [b"1", b"2"])
        self.close(producer)

    def test_failing(self) -> None:
        """A hook that fails is told, and costs at most its own messages."""

        class Failing(Hooks):
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

        hooks = Failing()
        producer = self.producer({"batch.size": 1}, hooks=hooks)
        for name in ("beforeEnqueue", "beforeSending"):
            hooks.fails = name
            self.failureResultOf(producer.send("t", b"x"), PylogbrokerError)
        for name in ("afterEnqueue", "poll"):
            hooks.fails = name
            sending = producer.send("t", name.encode())
            self.turn()
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"afterEnqueue", b"poll"])
        hooks.fails = "last"
        self.close(producer)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 5)

    def test_eventSender(self) -> None:
        """An event sender of the application's own gets batches, the way to the broker and the encoder, and says what became of them."""
        calls: list[Any] = []

        class Sender:
            def init(self, properties: Any) -> None:
                calls.append(("init", dict(properties)))

            def handle(self, batch: Any, carrier: Any, encoder: Any) -> Any:
                payloads = [encoder(item.value) for item in batch]
                calls.append(payloads)
                if payloads == [b"bad"]:
                    raise ZeroDivisionError
                if payloads == [b"one"]:
                    return carrier.send("mine", 3, encodeSet(payloads))
                if payloads == [b"never"]:
                    return Deferred()
                return carrier.multiSend([("mine", 4, encodeSet(payloads))])

            def close(self) -> None:
                calls.append("close")

        producer = self.producer(
            {"batch.size": 1, "event.handler.props": "x=y"}, eventSender=Sender()
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
        """A hook may change the batch that it is given, and an event sender may empty it: it is theirs, and all are told all the same."""

        class Adding(Hooks):
            def beforeSendingData(self, batch: Any) -> Any:
                batch.append(QueueItem("t", b"more", partition=batch[0].partition))
                return batch

        class Choosing(Hooks):
            def beforeSendingData(self, batch: Any) -> Any:
                batch[:] = [item for item in batch if item.value != b"1"]
                return batch

        class Emptying:
            def init(self, properties: Any) -> None:
                pass

            def handle(self, batch: Any, carrier: Any, encoder: Any) -> None:
                batch.clear()

            def close(self) -> None:
                pass

        arguments: list[dict[str, Any]] = [
            {"hooks": Adding()},
            {"hooks": Choosing()},
            {"eventSender": Emptying()},
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

    def test_named(self) -> None:
        """Hooks and event senders can be named by their classes."""
        producer = self.producer({"callback.handler": "pylogbroker.producer.hooks.Hooks"})
        self.assertIsInstance(producer._hooks, Hooks)
        self.close(producer)
        self.assertRaises(ConfigurationError, self.producer, {"event.handler": "no.such"})


class ClusterTests(ClusterCase):
    """Hooks where brokers come and go."""

    def test_brokerVanishes(self) -> None:
        """What a broker that vanished has left goes by the hooks, and by the event sender, like everything else: nothing has seen it yet."""

        class Sealing(Hooks):
            def beforeSendingData(self, batch: Any) -> Any:
                for item in batch:
                    item.value = b"sealed"
                return batch

        class Sender:
            def init(self, properties: Any) -> None:
                pass

            def handle(self, batch: Any, carrier: Any, encoder: Any) -> Any:
                return carrier.send(
                    "by the sender", 0, encodeSet([encoder(item.value) for item in batch])
                )

            def close(self) -> None:
                pass

        arguments: list[dict[str, Any]] = [{"hooks": Sealing()}, {"eventSender": Sender()}]
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

    def test_keepsToTheEnd(self) -> None:
        """A hook that keeps all it sees gives it back in the last batch, also when the producer is closed before anybody knew where messages go."""

        class Keeping(Hooks):
            def __init__(self) -> None:
                self.kept: list[QueueItem] = []

            def afterDequeuingExistingData(self, item: QueueItem | None) -> list[QueueItem]:
                self.kept += [item] if item else []
                return []

            def lastBatchBeforeClose(self) -> list[QueueItem]:
                return self.kept

        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async"}, hooks=Keeping())
        for value in (b"1", b"2", b"3"):
            producer.post("t", value)
        closing = producer.close()
        self.settle()
        self.successResultOf(closing)
        self.assertEqual(self.a.payloads(), [b"1", b"2", b"3"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_changesTopic(self) -> None:
        """A hook may send one message of a call elsewhere: it goes to a partition of that topic."""

        class Sorting(Hooks):
            def beforeEnqueue(self, item: QueueItem) -> QueueItem:
                return QueueItem("few", item.value) if item.value == b"2" else item

        self.register(0, "a:1")
        self.topic("many", 0, 9)
        self.topic("few", 0, 1)
        producer = self.clustered({"producer.type": "async"}, hooks=Sorting(), random=lambda: 0.99)
        sending = producer.send("many", [b"1", b"2", b"3"])
        self.settle()
        producer.flush()
        self.done(sending)
        self.assertEqual(self.a.log, [("many", 8, b"1"), ("many", 8, b"3"), ("few", 0, b"2")])
        self.close(producer)
