"""
What both low-level clients do with a whole broker: rows 88 to 93 and 122 of the feature checklist,
and the scenarios of 0.7.2's PrimitiveApiTest, LazyInitProducerTest, LogCorruptionTest and
SyncProducerTest. C{test_clients} runs each with the client for Twisted and with the one for
threads.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

from pylogbroker.errors import (
    BrokerConnectionError,
    InvalidMessageSizeError,
    MessageTooLargeError,
    RemoteOffsetOutOfRangeError,
    RemotePartitionError,
)
from pylogbroker.records.compression import GZIP, NONE, SNAPPY
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.types import EARLIEST, LATEST
from tests.integration.threaded import BrokerCase, inThread

SIZE_MAX = 1 << 20


def payloadsOf(found: MessageSet) -> list[bytes]:
    """Deep."""
    return [message.payload for message, _ in found]


class ClientScenarios(BrokerCase):
    """What both clients do; a case for each says which client it is."""

    def consumer(self, timeoutMs: float = 20_000) -> Any:
        """A L{SimpleConsumer} whose methods block, or the like."""
        raise NotImplementedError

    def producer(self, **options: Any) -> Any:
        """A L{SyncProducer} whose methods block, or the like."""
        raise NotImplementedError

    @inThread
    def test_produceAndFetch(self) -> None:
        """
        PrimitiveApiTest.testDefaultEncoderProducerAndFetch; LazyInitProducerTest: what was sent is
        fetched; a wrong offset is an error.
        """
        self.serve()
        producer, consumer = self.producer(), self.consumer()
        producer.send("t", 0, [b"test-message"])
        producer.confirm("t", 0)
        found = consumer.fetch("t", 0, 0, SIZE_MAX)
        self.assertEqual(
            [(message.payload, offset) for message, offset in found], [(b"test-message", 22)]
        )
        self.assertEqual((found.validSize, found.nextOffset), (22, 22))
        for offset in (-1, 23):
            self.assertRaises(
                RemoteOffsetOutOfRangeError, list, consumer.fetch("t", 0, offset, SIZE_MAX)
            )

    @inThread
    def test_multiFetch(self) -> None:
        """
        PrimitiveApiTest.testProduceAndMultiFetch: several topics at once, plain and compressed;
        offset -1 and partition -1 are errors of their part only.
        """
        self.serve()
        producer, consumer = self.producer(), self.consumer()
        for codec in (NONE, GZIP, SNAPPY):
            topics = [f"{name}{codec}" for name in ("test1-", "test2-", "test3-", "test4-")]
            for topic in topics:
                producer.send(topic, 0, [f"a_{topic}".encode(), f"b_{topic}".encode()], codec=codec)
            producer.confirm(topics[0], 0)
            found = consumer.multifetch([(topic, 0, 0, SIZE_MAX) for topic in topics])
            self.assertEqual(
                [payloadsOf(one) for one in found],
                [[f"a_{topic}".encode(), f"b_{topic}".encode()] for topic in topics],
            )
            wrongOffset, wrongPartition, right = consumer.multifetch(
                [(topics[0], 0, -1, 99), (topics[0], -1, 0, 99), (topics[0], 0, 0, SIZE_MAX)]
            )
            self.assertRaises(RemoteOffsetOutOfRangeError, list, wrongOffset)
            self.assertRaises(RemotePartitionError, list, wrongPartition)
            self.assertEqual(len(list(right)), 2)

    @inThread
    def test_multiSend(self) -> None:
        """
        PrimitiveApiTest.testMultiProduce, LazyInitProducerTest.testMultiProduceResend: several
        topics in one request; sent again, all is there twice.
        """
        self.serve()
        producer, consumer = self.producer(), self.consumer()
        for codec in (NONE, GZIP, SNAPPY):
            parts = [
                (f"{name}{codec}", 0, [f"a_{name}".encode(), f"b_{name}".encode()])
                for name in ("test1-", "test2-", "test3-")
            ]
            for times in (1, 2):
                producer.multiSend(parts, codec=codec)
                producer.confirm(parts[0][0], 0)
                for topic, partition, payloads in parts:
                    self.assertEqual(
                        payloadsOf(consumer.fetch(topic, partition, 0, SIZE_MAX)), payloads * times
                    )

    @inThread
    def test_missingTopic(self) -> None:
        """
        PrimitiveApiTest.testConsumerNotExistTopic: fetching a topic that is not there is empty, and
        creates nothing.
        """
        self.serve()
        consumer = self.consumer()
        self.assertEqual(list(consumer.fetch("test-not-there", 0, 0, 10_000)), [])
        self.assertEqual(consumer.getOffsetsBefore("test-not-there", 0, LATEST, 1), [0])
        self.assertEqual([name for name in os.listdir(self.broker.directory) if "test" in name], [])

    @inThread
    def test_randomPartition(self) -> None:
        """Without a partition the broker picks one."""
        self.serve({"num.partitions": "2"})
        producer, consumer = self.producer(), self.consumer()
        for number in range(40):
            producer.send("t", [b"%d" % number])
        producer.confirm("t", 0)
        found = [
            payloadsOf(one)
            for one in consumer.multifetch([("t", partition, 0, SIZE_MAX) for partition in (0, 1)])
        ]
        self.assertEqual(sorted(int(payload) for payload in found[0] + found[1]), list(range(40)))
        self.assertRaises(AssertionError, self.assertEqual, [], found[0])

    @inThread
    def test_offsetsBefore(self) -> None:
        """
        LogOffsetTest, over the wire: the end and the segments' beginnings, descending; a fetch at
        the end is empty.
        """
        self.serve({"log.file.size": "100"})
        producer, consumer = self.producer(), self.consumer()
        for _ in range(20):
            producer.send("kafka-", 0, [b"12"])
        producer.confirm("kafka-", 0)
        self.assertEqual(consumer.getOffsetsBefore("kafka-", 0, LATEST, 10), [240, 216, 108, 0])
        self.assertEqual(consumer.getOffsetsBefore("kafka-", 0, EARLIEST, 10), [0])
        self.assertEqual(consumer.getOffsetsBefore("kafka-", 0, 1, 10), [])
        self.assertEqual(list(consumer.fetch("kafka-", 0, 240, SIZE_MAX)), [])

    @inThread
    def test_reconnect(self) -> None:
        """
        A connection that is lost between calls, or under one, is made anew, once, without a word to
        the application.
        """
        self.serve()
        producer, consumer = self.producer(), self.consumer()
        producer.send("t", 0, [b"hello"])
        producer.close()
        for _ in range(3):
            self.assertEqual(payloadsOf(consumer.fetch("t", 0, 0, SIZE_MAX)), [b"hello"])
            self.inReactor(self.cutAll)
        self.assertEqual(consumer.getOffsetsBefore("t", 0, LATEST, 1), [15])

    def cutAll(self) -> None:
        """The broker cuts every connection."""
        for connection in list(self.broker.broker.service.connections.open):
            connection.abort()

    @inThread
    def test_noBroker(self) -> None:
        """When there is no broker any more, calls fail with the reason, within their time-out."""
        self.serve()
        consumer = self.consumer(timeoutMs=300)
        consumer.fetch("t", 0, 0, SIZE_MAX)
        self.inReactor(self.broker.stop)
        self.assertRaises(BrokerConnectionError, consumer.fetch, "t", 0, 0, SIZE_MAX)

    @inThread
    def test_externalOffset(self) -> None:
        """
        An application that keeps its offset itself, beside its results, and is restarted in the
        middle, gets every message once, in order.
        """
        self.serve()
        producer = self.producer()
        for number in range(0, 100, 4):
            producer.send("t", 0, [b"%d" % each for each in range(number, number + 4)])
        producer.confirm("t", 0)
        store = json.dumps({"offset": 0, "results": []})
        random = Random(1)
        while len(json.loads(store)["results"]) < 100:
            consumer = self.consumer()  # as after a restart
            for _ in range(random.randrange(1, 4)):
                state = json.loads(store)
                for message, offset in consumer.fetch("t", 0, state["offset"], 77):
                    state = {"offset": offset, "results": [*state["results"], int(message.payload)]}
                store = json.dumps(state)
            consumer.close()
        self.assertEqual(json.loads(store)["results"], list(range(100)))

    @inThread
    def test_rewind(self) -> None:
        """Reading again from an old offset gives the same again."""
        self.serve()
        producer, consumer = self.producer(), self.consumer()
        producer.send("t", 0, [b"%d" % number for number in range(10)])
        producer.confirm("t", 0)
        first = list(consumer.fetch("t", 0, 0, SIZE_MAX))
        self.assertEqual(list(consumer.fetch("t", 0, first[4].nextOffset, SIZE_MAX)), first[5:])
        self.assertEqual(list(consumer.fetch("t", 0, 0, SIZE_MAX)), first)

    @inThread
    def test_drainOnClose(self) -> None:
        """
        Closing a producer lets everything go out that was given to it: it is all there afterwards,
        in order.
        """
        self.serve()
        producer = self.producer()
        for number in range(300):
            producer.send("t", 0, [b"%05d" % number + b"x" * 2000])
        producer.close()
        self.assertEqual(
            [
                int(payload[:5])
                for payload in payloadsOf(self.consumer().fetch("t", 0, 0, SIZE_MAX))
            ],
            list(range(300)),
        )

    @inThread
    def test_corruptLog(self) -> None:
        """
        LogCorruptionTest.testMessageSizeTooLarge: a size field overwritten with 1000 on the disk
        makes reading raise, every time.
        """
        self.serve({"log.flush.interval": "1"})
        producer, consumer = self.producer(), self.consumer()
        producer.send("t", 0, [b"hello"])
        producer.confirm("t", 0)
        with Path(self.broker.directory, "t-0", "0" * 20 + ".kafka").open("r+b") as segment:
            segment.write((1000).to_bytes(4, "big"))
        for _ in range(3):
            self.assertRaises(InvalidMessageSizeError, list, consumer.fetch("t", 0, 0, SIZE_MAX))

    @inThread
    def test_fetchSizeTooSmall(self) -> None:
        """
        A message larger than the fetch raises, rather than that the reader asks for ever; a cut one
        behind a whole one is the end.
        """
        self.serve()
        producer, consumer = self.producer(), self.consumer()
        producer.send("t", 0, [b"small", b"x" * 500])
        producer.confirm("t", 0)
        self.assertEqual(payloadsOf(consumer.fetch("t", 0, 0, 100)), [b"small"])
        self.assertRaises(InvalidMessageSizeError, list, consumer.fetch("t", 0, 15, 100))

    @inThread
    def test_reachableProducer(self) -> None:
        """
        SyncProducerTest.testReachableServer: sends return, one after the other, without an answer.
        """
        self.serve()
        producer = self.producer()
        for _ in range(3):
            producer.send("test", 0, [b"payload"])
        self.assertEqual(producer.confirm("test", 0), 3 * 17)

    @inThread
    def test_messageSizeTooLarge(self) -> None:
        """
        SyncProducerTest.testMessageSizeTooLarge: 101 bytes with a limit of 100 are refused before
        anything is sent; 100 are not.
        """
        self.serve()
        producer = self.producer(payloadSizeMax=100)
        self.assertRaises(MessageTooLargeError, producer.send, "test", 0, [b"x" * 101])
        self.assertRaises(
            MessageTooLargeError,
            producer.multiSend,
            [("test", 0, [b"fits"]), ("test", 0, [b"x" * 101])],
        )
        producer.send("test", 0, [b"x" * 100])
        self.assertEqual(producer.confirm("test", 0), 110)

    @inThread
    def test_compressedMessageSizeTooLarge(self) -> None:
        """
        SyncProducerTest.testCompressedMessageSizeTooLarge: a wrapper counts as one message: its
        payload is what is measured, not what is in it.
        """
        self.serve()
        producer = self.producer(payloadSizeMax=100)
        noise = Random(7)
        self.assertRaises(
            MessageTooLargeError,
            producer.send,
            "test",
            0,
            [noise.randbytes(20) for _ in range(10)],
            codec=GZIP,
        )
        large = [b"x" * 200] * 3
        self.assertLess(len(encodeSet(large, codec=GZIP)), 100)
        producer.send("test", 0, large, codec=GZIP)
        producer.confirm("test", 0)
        self.assertEqual(payloadsOf(self.consumer().fetch("test", 0, 0, SIZE_MAX)), large)
