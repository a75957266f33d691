"""
Tests of what outcomes become on the wire of 2011: every row of spec-0.7 wire-protocol §7.1 and §9
that a broker without ZooKeeper has.
"""

from __future__ import annotations

import errno
import struct

import cramjam

from pylogbroker.broker.kafka07 import codeFor
from pylogbroker.errors import (
    InvalidTopicError,
    OffsetOutOfRangeError,
    PartitionOfflineError,
    PartitionOutOfRangeError,
    PylogbrokerError,
)
from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.protocol.kafka07.responses import fetchHeader, multiFetchHeader
from pylogbroker.records.compression import GZIP, SNAPPY
from pylogbroker.records.messageset import MessageSet, encodeMessage, encodeSet, wrapCompressed
from pylogbroker.storage.partitionlog import writtenWatermark
from tests.broker.manualbroker import LeadBroker, LeadTestCase, capture, plainServer
from tests.broker.test_server import BAD, NOISE, TOO_LARGE

A, B, C = encodeSet([b"a"]), encodeSet([b"b"]), encodeSet([b"c"])
UNKNOWN_CODEC = encodeMessage(b"x", codec=GZIP)[:5] + b"\x03" + encodeMessage(b"x", codec=GZIP)[6:]
UNKNOWN_MAGIC = b"\x00\x00\x00\x07\x02\x00" + A[6:]


class DialectTestCase(LeadTestCase):
    """A broker, asked with frames over connections."""

    properties: dict[str, str] = {}

    def setUp(self) -> None:
        super().setUp()
        self.lead = self.broker({"num.partitions": "2", **self.properties})
        self.addCleanup(self.nothingPinned)

    def nothingPinned(self) -> None:
        """In the end every slice was let go, whatever became of it."""
        self.lead.settle()
        self.assertEqual(self.lead.pinCounts(), [0] * len(self.lead.pinCounts()))

    def ask(self, *frames: bytes, lead: LeadBroker | None = None) -> tuple[bytes, bool]:
        """Send on a connection of its own: (what came back, whether it was closed)."""
        lead = lead or self.lead
        peer = lead.connect()
        peer.send(*frames)
        lead.settle()
        answer = peer.receive()
        closed = peer.closed
        peer.close()
        return answer, closed

    def counts(self, topic: str = "t") -> dict[str, int]:
        """Of a topic, without the zeros."""
        counters = self.lead.counters.topics.get(topic)
        return (
            {name: count for name, count in counters.snapshot().items() if count}
            if counters
            else {}
        )

    def stored(self, topic: str = "t", partition: int = 0) -> bytes | None:
        """What is in a partition; L{None}: it does not exist."""
        return (
            self.lead.contents(topic, partition)
            if (topic, partition) in self.lead.directory.logs
            else None
        )


class FetchTests(DialectTestCase):
    """The table of §7.1."""

    def setUp(self) -> None:
        super().setUp()
        self.ask(encodeProduce("t", 0, A + B + C))

    def fetch(
        self, topic: str, partition: int, offset: int, sizeMax: int
    ) -> tuple[int, bytes] | None:
        """(code, set), with the connection open; L{None}: it was closed without an answer."""
        answer, closed = self.ask(encodeFetch(topic, partition, offset, sizeMax))
        if closed:
            self.assertEqual(answer, b"")
            return None
        size, code = struct.unpack_from(">ih", answer)
        self.assertEqual(size, len(answer) - 4)
        return code, answer[6:]

    def test_rows(self) -> None:
        """Each situation has its answer (row 4, row 17)."""
        for request, expected in (
            (("t", 0, 33, 100), (0, b"")),  # the end
            (("t", 0, 34, 100), (1, b"")),  # beyond
            (("t", 0, -1, 100), (1, b"")),  # negative
            (("t", 0, 4, 9), (0, (A + B)[4:13])),  # in the middle of a message
            (("t", 0, 0, 0), (0, b"")),  # no size
            (("t", 0, 33, -5), (0, b"")),  # negative size, at the end
            (("t", 0, 0, 15), (0, (A + B)[:15])),  # a cut last message
            (("t", 0, 0, 3), (0, A[:3])),  # a first message larger than the size
            (("t", 0, 0, 2**31 - 1), (0, A + B + C)),
            (("..", 0, 0, 100), (-1, b"")),  # illegal topic
            (("", 5, 0, 100), (-1, b"")),  # judged before the partition
            (("a\x00", 0, 0, 100), (-1, b"")),
            (("t", 2, 0, 100), (3, b"")),  # partition out of range
            (("t", -1, 0, 100), (3, b"")),  # -1 is nothing special here
            (("unknown", 2, 0, 100), (3, b"")),  # also of a topic that does not exist
            (("unknown", 0, 500, 100), (0, b"")),
            (("t", 1, 500, 100), (0, b"")),  # a partition that does not exist yet
        ):
            self.assertEqual(self.fetch(*request), expected, request)
        self.assertIsNone(self.stored("unknown"))
        self.assertIsNone(self.stored("t", 1))

    def test_moreThanAFrame(self) -> None:
        """
        Of a segment that is larger than a frame can be, a fetch of all that can be asked for gets
        as much as fits in one; several must fit together.
        """
        log = self.lead.log()
        size = 2**31 + 100  # but not on the disk
        log.segments[0].writtenSize = log.writtenOffset = log.logEndOffset = size
        log.setWatermarkPolicy(writtenWatermark)
        answer, closed = self.ask(encodeFetch("t", 0, 0, 2**31 - 1))
        self.assertEqual(answer, struct.pack(">ih", 2**31 - 1, 0) + A + B + C)
        self.assertTrue(closed)  # where the file ends
        self.assertEqual(
            self.ask(encodeMultiFetch([("t", 1, 0, 1), ("t", 0, 0, 2**31 - 1)])), (b"", True)
        )

    def test_negativeSize(self) -> None:
        """
        A negative size inside the log closes the connection. 0.7.2 sends a broken header first,
        from which no client could go on (gotcha 17).
        """
        self.assertIsNone(self.fetch("t", 0, 0, -1))
        self.assertEqual(self.counts()["failedFetchCount"], 1)

    def test_inventedTopics(self) -> None:
        """
        A client that fetches invented topics takes no counters from the topics that come later.
        """
        before = set(self.lead.counters.topics)
        for number in range(20):
            self.fetch(f"invented{number}", 0, 0, 100)
            self.fetch(f"invented{number}", 99, 0, 100)
        self.assertEqual(set(self.lead.counters.topics), before)

    def test_connectionStays(self) -> None:
        """After any answer, an error or not, the connection goes on."""
        frames = [
            encodeFetch(*request)
            for request in (
                ("..", 0, 0, 1),
                ("t", 9, 0, 1),
                ("t", 0, 99, 1),
                ("u", 0, 0, 1),
                ("t", 0, 0, 11),
            )
        ]
        expected = (
            fetchHeader(-1, 0)
            + fetchHeader(3, 0)
            + fetchHeader(1, 0)
            + fetchHeader(0, 0)
            + fetchHeader(0, 11)
            + A
        )
        self.assertEqual(self.ask(*frames), (expected, False))

    def test_outOfService(self) -> None:
        """
        A partition out of service is answered with -1, while others serve; the reason is logged,
        not sent.
        """
        self.ask(encodeProduce("u", 0, A))
        self.lead.fileSystem.fail("fsync", "t-0/00000000000000000000.kafka", errno.EIO)
        self.ask(encodeProduce("t", 0, A))
        lines = capture(self)
        self.assertEqual(self.fetch("t", 0, 0, 100), (-1, b""))
        self.assertEqual(self.fetch("u", 0, 0, 100), (0, A))
        self.assertEqual(len(lines()), 1)
        self.assertIn("A fetch was answered with code -1: ", lines()[0])
        self.assertIn("Input/output error", lines()[0])

    def test_cannotBeOpened(self) -> None:
        """
        A segment that cannot be opened now is -1 (spec: deleted between look-up and read); the next
        fetch may find it.
        """
        self.lead.directory.cache.closeIdle()
        self.lead.fileSystem.fail("open", ".kafka", errno.ENOENT)
        self.assertEqual(self.fetch("t", 0, 0, 100), (-1, b""))
        self.assertEqual(self.fetch("t", 0, 0, 100), (0, A + B + C))

    def test_closesLater(self) -> None:
        """What ends the connection ends it also after a wait for a due flush."""
        self.assertEqual(
            self.ask(
                encodeProduce("t", 0, A), encodeFetch("t", 0, 0, -1), encodeFetch("t", 0, 0, 1)
            ),
            (b"", True),
        )

    def test_boundary(self) -> None:
        """An answer ends with its segment."""
        lead = self.broker({"log.file.size": "15"})
        self.ask(encodeProduce("t", 0, A + B), encodeProduce("t", 0, C), lead=lead)
        self.assertEqual(self.ask(encodeFetch("t", 0, 0, 100), lead=lead)[0][6:], A + B)
        self.assertEqual(self.ask(encodeFetch("t", 0, 22, 100), lead=lead)[0][6:], C)

    def test_counts(self) -> None:
        """
        Requests, bytes handed out, bytes sent and failed fetches are counted by exactly what was
        done.
        """
        before = self.lead.counters.requests.snapshot()
        for request in (
            ("t", 0, 0, 15),
            ("t", 0, 33, 15),
            ("t", 0, 99, 15),
            ("t", 7, 0, 15),
            ("u", 0, 0, 15),
            ("u", 7, 0, 15),
        ):
            self.fetch(*request)
        after = self.lead.counters.requests.snapshot()
        self.assertEqual(
            {name: after[name] - before[name] for name in after if after[name] != before[name]},
            {"fetchCount": 6, "writtenSize": 6 * 6 + 15, "writeCount": 6 + 1},
        )
        self.assertEqual(
            self.counts(),
            {"messageCount": 3, "producedSize": 33, "fetchedSize": 15, "failedFetchCount": 2},
        )
        self.assertEqual(
            (self.counts("u"), self.lead.counters.otherTopics.failedFetchCount), ({}, 1)
        )  # no topic has that name
        self.assertEqual(self.lead.counters.connections.malformedCount, 0)

    def test_codes(self) -> None:
        """Outcomes have the codes of §8: 1 and 3 for two of them, -1 for everything else."""
        for error, code in (
            (OffsetOutOfRangeError(), 1),
            (PartitionOutOfRangeError(), 3),
            (InvalidTopicError(), -1),
            (PartitionOfflineError("t-0", "read", "out of service"), -1),
            (PylogbrokerError(), -1),
        ):
            self.assertEqual(codeFor(error), code)


class MultiFetchTests(DialectTestCase):
    """Several in one (row 5)."""

    def setUp(self) -> None:
        super().setUp()
        self.ask(encodeProduce("t", 0, A + B), encodeProduce("u", 1, C))

    def answer(self, *parts: tuple[int, bytes]) -> bytes:
        return multiFetchHeader([len(data) for _, data in parts]) + b"".join(
            fetchHeader(code, len(data)) + data for code, data in parts
        )

    def test_mixed(self) -> None:
        """Each part has its own code; the order is the one asked for; the outer code is 0."""
        request = encodeMultiFetch(
            [
                ("u", 1, 0, 100),
                ("t", 0, 999, 100),
                ("t", 5, 0, 100),
                ("..", 0, 0, 100),
                ("none", 0, 5, 100),
                ("t", 0, 0, 11),
                ("t", 0, 11, 11),
                ("t", 0, 0, 11),
            ]
        )
        expected = self.answer(
            (0, C), (1, b""), (3, b""), (-1, b""), (0, b""), (0, A), (0, B), (0, A)
        )
        self.assertEqual(self.ask(request), (expected, False))
        self.assertEqual(self.lead.counters.requests.fetchCount, 1)
        self.assertEqual((self.counts()["fetchedSize"], self.counts()["failedFetchCount"]), (33, 2))

    def test_plain(self) -> None:
        """The same over a transport that cannot send slices."""
        peer = self.lead.connect(plainServer)
        peer.send(encodeMultiFetch([("u", 1, 0, 100), ("t", 0, 999, 100), ("t", 0, 0, 100)]))
        self.lead.settle()
        self.assertEqual(peer.receive(), self.answer((0, C), (1, b""), (0, A + B)))

    def test_none(self) -> None:
        """None at all is answered with none."""
        self.assertEqual(self.ask(encodeMultiFetch([])), (fetchHeader(0, 0), False))

    def test_many(self) -> None:
        """As many as the count can say are answered."""
        answer, closed = self.ask(encodeMultiFetch([("none", 0, 0, 1)] * 32767))
        self.assertEqual((answer, closed), (self.answer(*[(0, b"")] * 32767), False))

    def test_negativeSize(self) -> None:
        """
        A negative size in one part closes the connection; what was found for others is let go.
        """
        self.assertEqual(
            self.ask(encodeMultiFetch([("t", 0, 0, 100), ("t", 0, 0, -1), ("u", 1, 0, 100)])),
            (b"", True),
        )

    def test_waits(self) -> None:
        """Parts that wait, for a due flush or a file, are waited for, one after the other."""
        self.lead.directory.cache.closeIdle()
        peer = self.lead.connect()
        peer.send(
            encodeProduce("t", 0, C),
            encodeMultiFetch([("u", 1, 0, 100), ("t", 0, 22, 100), ("t", 0, 0, 22)]),
        )
        self.assertEqual(peer.receive(), b"")
        self.lead.settle()
        self.assertEqual(peer.receive(), self.answer((0, C), (0, C), (0, A + B)))

    def test_waitsInVain(self) -> None:
        """A part whose wait fails is -1, beside others."""
        peer = self.lead.connect()
        self.lead.fileSystem.fail("fsync", "t-0/00000000000000000000.kafka", errno.EIO)
        peer.send(encodeProduce("t", 0, C), encodeMultiFetch([("u", 1, 0, 100), ("t", 0, 22, 100)]))
        self.lead.settle()
        self.assertEqual(peer.receive(), self.answer((0, C), (-1, b"")))

    def test_tooMuch(self) -> None:
        """Parts that together do not fit in an answer close the connection, and are let go."""
        lead = self.broker()
        self.ask(encodeProduce("t", 0, encodeSet([b"x" * 900_000])), lead=lead)
        count = 2**31 // 900_000 + 1
        self.assertEqual(
            self.ask(encodeMultiFetch([("t", 0, 0, 1_000_000)] * count), lead=lead), (b"", True)
        )
        self.assertEqual(lead.pinCounts(), [0])


class ProduceTests(DialectTestCase):
    """The rows of §9 for PRODUCE."""

    def test_closing(self) -> None:
        """
        What closes the connection, counts as failed and appends nothing of the set (row 10, row
        19).
        """
        for number, (topic, partition, data) in enumerate(
            (
                ("t", 2, A),  # partition out of range
                ("t", -2, A),
                ("t", 0, A[:-1]),  # first entry incomplete
                ("t", 0, b"\xff\xff\xff\xff" + A[4:]),  # negative size
                ("t", 0, b"\x00\x00\x00\x04\x00\x00\x00\x00"),  # too small for a header
                ("t", 0, b"\x00\x00\x00\x05\x01\x00\x00\x00\x00"),  # of magic 1
                ("t", 0, A + b"\x00\x00\x00\x00" + A),
                ("t", 0, BAD),  # checksum
                ("t", 0, A + BAD),
                ("t", 0, wrapCompressed(GZIP, BAD)),  # of an inner message
                ("t", 0, UNKNOWN_MAGIC),
                ("t", 0, UNKNOWN_CODEC),
                ("t", 0, encodeMessage(b"no gzip", codec=GZIP)),
                ("t", 0, encodeMessage(NOISE, codec=GZIP)),
                ("t", 0, BAD + TOO_LARGE),
            )
        ):
            self.assertEqual(
                self.ask(encodeProduce(topic, partition, data)),
                (b"", True),
                (topic, partition, data[:20]),
            )
            failedCount = (
                self.counts().get("failedProduceCount", 0)
                + self.lead.counters.otherTopics.failedProduceCount
            )
            self.assertEqual(failedCount, number + 1)
        self.assertEqual(self.stored(), b"")
        self.assertEqual(self.lead.counters.requests.produceCount, 15)
        self.assertEqual(self.lead.counters.connections.malformedCount, 15)

    def test_illegalTopics(self) -> None:
        """An illegal topic closes the connection, counts as failed, and makes nothing."""
        for number, topic in enumerate(("", ".", "..", "a/b", "x" * 256)):
            self.assertEqual(self.ask(encodeProduce(topic, 0, A)), (b"", True), topic)
            self.assertEqual(
                (self.counts(topic), self.lead.counters.otherTopics.failedProduceCount),
                ({}, number + 1),
            )
        self.assertEqual(self.lead.directory.logs, {})

    def test_malformedUtf8(self) -> None:
        """A topic that is no UTF-8 becomes U+FFFD, which is illegal."""
        frame = (
            struct.pack(">ihh", 2 + 2 + 2 + 8 + len(A), 0, 2)
            + b"\xc3\x28"
            + struct.pack(">ii", 0, len(A))
            + A
        )
        self.assertEqual(self.ask(frame), (b"", True))
        self.assertEqual(
            (self.counts("\ufffd("), self.lead.counters.otherTopics.failedProduceCount), ({}, 1)
        )

    def test_accepted(self) -> None:
        """What is accepted without a word (row 8, row 9, row 14)."""
        cases = (
            (b"", b""),  # an empty set
            (b"\x00\x00", b""),  # less than a size field
            (A + B[:-1], A),  # a cut last entry
            (A + b"\x00\x00\x00", A),
            (encodeSet([b""]), encodeSet([b""])),
            (encodeSet([b"", b"x"], magic=0), encodeSet([b"", b"x"], magic=0)),
            (A[:5] + b"\xf8" + A[6:], A[:5] + b"\xf8" + A[6:]),  # unused attribute bits are kept
            (wrapCompressed(GZIP, A + B), wrapCompressed(GZIP, A + B)),
        )
        kept = b""
        for data, stored in cases:
            self.assertEqual(self.ask(encodeProduce("t", 0, data)), (b"", False), data)
            kept += stored
            self.assertEqual(self.stored(), kept)
        self.assertNotIn("failedProduceCount", self.counts())

    def test_behindTheSet(self) -> None:
        """Bytes behind the set inside the frame are ignored."""
        frame = encodeProduce("t", 0, A)
        self.assertEqual(
            self.ask(
                struct.pack(">i", len(frame) - 4 + 3) + frame[4:] + b"abc", encodeProduce("t", 0, B)
            ),
            (b"", False),
        )
        self.assertEqual(self.stored(), A + B)

    def test_tooLarge(self) -> None:
        """
        A set with a payload over the limit is dropped as a whole, counted, logged once for many;
        the connection goes on (row 16).
        """
        lines = capture(self)
        frames = [
            encodeProduce("t", 0, data)
            for data in (A, TOO_LARGE, B, A + TOO_LARGE, TOO_LARGE + BAD, C)
        ]
        peer = self.lead.connect()
        for frame in frames:
            peer.send(frame)
            self.lead.settle()
        self.assertFalse(peer.isClosed)
        self.assertEqual(self.stored(), A + B + C)
        self.assertEqual(
            self.counts(), {"messageCount": 3, "producedSize": 33, "failedProduceCount": 3}
        )
        dropped = [line for line in lines() if "was dropped" in line]
        self.assertEqual(len(dropped), 1)
        self.assertIn("payload of 1000001 bytes, 1000000 are allowed", dropped[0])

    def test_droppedIsNotProven(self) -> None:
        """
        A question behind what was dropped, in whatever request, ends the connection, though what
        came between is kept; the log says why. Fetches there are answered, and the questions of
        others.
        """
        lines = capture(self)
        question = encodeOffsets("u", 0, -1, 1)
        asker = self.lead.connect()
        for frame in (
            encodeProduce("t", 0, TOO_LARGE),
            encodeProduce("t", 0, TOO_LARGE + A),
            encodeMultiProduce([("u", 0, b""), ("t", 0, TOO_LARGE)]),
        ):
            self.assertEqual(
                self.ask(frame, encodeProduce("t", 0, A), encodeFetch("none", 0, 0, 1), question),
                (fetchHeader(0, 0), True),
            )
        asker.send(question)
        self.assertEqual(asker.offsets(), [[0]])
        self.assertEqual(self.stored(), A + A + A)
        (said,) = [line for line in lines() if line.startswith("Closed the connection")]
        self.assertIn(
            "the client asked for proof of what it had sent, and some of that was dropped: ", said
        )
        self.assertIn("payload of 1000001 bytes, 1000000 are allowed", said)

    def test_inARun(self) -> None:
        """
        Of many requests sent at once: what comes before a refused one stays, a dropped one is left
        out, what comes behind a refused one is lost.
        """
        small = self.broker({"max.message.size": "50"})
        over = encodeSet([b"x" * 51])
        self.ask(encodeProduce("t", 0, b""), lead=small)
        frames = [encodeProduce("t", 0, data) for data in (A, over, B, BAD, C)]
        self.assertEqual(self.ask(*frames, lead=small), (b"", True))
        self.assertEqual(small.contents(), A + B)
        self.assertEqual(small.counters.topic("t").snapshot()["failedProduceCount"], 2)

    def test_severalPartitions(self) -> None:
        """
        Requests that came together for several partitions, known and new ones, are all appended, in
        order in each; each request is counted. One that is refused, at once or after a wait, closes
        the connection, and costs only what is behind it in its own partition.
        """
        topics = ("t", "u", "v")
        self.ask(*(encodeProduce(topic, 0, A) for topic in topics))
        frames = [encodeProduce(topic, 0, data) for data in (B, C) for topic in topics]
        self.assertEqual(self.ask(*frames, encodeProduce("new", 0, C)), (b"", False))
        self.assertEqual([self.stored(topic) for topic in topics], [A + B + C] * 3)
        self.assertEqual(self.stored("new"), C)
        self.assertEqual(self.lead.counters.requests.produceCount, 10)
        for wrong in (encodeProduce("u", 9, A), encodeProduce("u", 0, BAD)):
            before = {topic: self.stored(topic) for topic in topics}
            frames = [
                *(encodeProduce(topic, 0, A) for topic in topics),
                wrong,
                *(encodeProduce(topic, 0, B) for topic in ("t", "v")),
            ]
            self.assertEqual(self.ask(*frames), (b"", True))
            for topic, more in (("t", A + B), ("u", A), ("v", A + B)):
                self.assertEqual(self.stored(topic), (before[topic] or b"") + more)

    def test_refusedTogether(self) -> None:
        """Of several refusals the first one closes the connection, and is logged."""
        self.ask(*(encodeProduce(topic, 0, A) for topic in ("t", "u")))
        lines = capture(self)
        self.ask(encodeProduce("x", 0, BAD), encodeProduce("u", 0, A), encodeProduce("t", 9, A))
        self.assertEqual(self.stored("u"), A + A)
        self.assertTrue(any("checksum" in line for line in lines()), lines())

    def test_randomPartition(self) -> None:
        """-1 lets the broker pick, one partition for a set (row 7)."""
        for _ in range(40):
            self.ask(encodeProduce("t", -1, A + B))
        sizes = [len(self.stored("t", partition) or b"") for partition in (0, 1)]
        self.assertEqual(sum(sizes), 880)
        self.assertTrue(all(size and size % 22 == 0 for size in sizes), sizes)

    def test_cannotBeMade(self) -> None:
        """
        A partition that cannot be made closes the connections of those who wait for it; a later try
        succeeds (row 46).
        """
        for code in (errno.EMFILE, errno.ENOSPC):
            self.lead.fileSystem.fail("create", ".kafka", code)
            topic = f"t{code}"
            first, second = self.lead.connect(), self.lead.connect()
            first.send(encodeProduce(topic, 0, A))
            second.send(encodeProduce(topic, 0, B))
            self.lead.settle()
            self.assertTrue(first.isClosed)
            self.assertTrue(second.isClosed)
            self.assertEqual(self.ask(encodeProduce(topic, 0, C)), (b"", False))
            self.assertEqual(self.stored(topic), C)

    def test_orderWithWorkers(self) -> None:
        """
        A large compressed set that a worker opens keeps its place among the requests of its
        connection.
        """
        large = encodeSet([NOISE], GZIP)
        peer = self.lead.connect()
        peer.send(
            *(encodeProduce("t", 0, data) for data in (A, large, B)), encodeOffsets("t", 0, -1, 1)
        )
        self.lead.flushWorker.performAll()
        self.assertEqual(
            (self.stored(), self.lead.log().logEndOffset, peer.offsets()), (b"", 11, [])
        )
        self.lead.settle()
        self.assertEqual((self.stored(), peer.offsets()), (A + large + B, [[22 + len(large)]]))

    def test_counts(self) -> None:
        """Requests and messages are counted by exactly what was done."""
        self.ask(
            encodeProduce("t", 0, A + B),
            encodeProduce("t", 0, wrapCompressed(GZIP, A + B + C)),
            encodeProduce("u", 0, C),
            encodeMultiProduce([("t", 0, C)]),
        )
        self.assertEqual(
            {
                name: count
                for name, count in self.lead.counters.requests.snapshot().items()
                if count
            },
            {"produceCount": 4},
        )
        self.assertEqual(
            self.counts(),
            {"messageCount": 6, "producedSize": 22 + len(wrapCompressed(GZIP, A + B + C)) + 11},
        )
        self.assertEqual(self.counts("u"), {"messageCount": 1, "producedSize": 11})


class MultiProduceTests(DialectTestCase):
    """Several in one (row 3)."""

    def test_all(self) -> None:
        """All parts are carried out, in order; -1 picks for each."""
        parts = [("t", 0, A), ("u", 1, B), ("t", 0, C), ("r", -1, A), ("t", 0, b"")]
        self.assertEqual(self.ask(encodeMultiProduce(parts)), (b"", False))
        self.assertEqual((self.stored(), self.stored("u", 1)), (A + C, B))
        self.assertIn(A, (self.stored("r", 0), self.stored("r", 1)))
        self.assertEqual(self.lead.counters.requests.produceCount, 1)

    def test_twice(self) -> None:
        """Sent again, the data is there twice (LazyInitProducerTest)."""
        for _ in range(2):
            self.ask(encodeMultiProduce([("t", 0, A), ("u", 0, B)]))
        self.assertEqual((self.stored(), self.stored("u")), (A + A, B + B))

    def test_none(self) -> None:
        """None at all is fine."""
        self.assertEqual(self.ask(encodeMultiProduce([])), (b"", False))

    def test_structure(self) -> None:
        """
        An error in the structure of any part closes the connection before the first is carried out.
        """
        frame = encodeMultiProduce([("t", 0, A), ("t", 0, B)])
        self.assertEqual(self.ask(struct.pack(">i", len(frame) - 5) + frame[4:-1]), (b"", True))
        self.assertIsNone(self.stored())
        self.assertEqual(self.counts(), {})

    def test_tooLarge(self) -> None:
        """A part that is too large is dropped, the rest carried out."""
        self.assertEqual(
            self.ask(encodeMultiProduce([("t", 0, A), ("t", 0, TOO_LARGE), ("u", 0, B)])),
            (b"", False),
        )
        self.assertEqual((self.stored(), self.stored("u")), (A, B))
        self.assertEqual(
            self.counts(), {"messageCount": 1, "producedSize": 11, "failedProduceCount": 1}
        )

    def test_refused(self) -> None:
        """
        A part that is refused otherwise closes the connection: those before it stay, those behind
        it never run.
        """
        self.ask(encodeProduce("t", 0, b""))
        for bad in (("t", 0, BAD), ("t", 9, A), ("..", 0, A)):
            before = self.stored() or b""
            self.assertEqual(
                self.ask(encodeMultiProduce([("t", 0, A), bad, ("behind", 0, B)])), (b"", True)
            )
            self.assertEqual(self.stored(), before + A)
        self.assertIsNone(self.stored("behind"))


class OffsetsTests(DialectTestCase):
    """OFFSETS (row 6)."""

    def test_answers(self) -> None:
        """Latest, earliest and a time, of what exists and what does not."""
        self.ask(encodeProduce("t", 0, A + B))
        for request, expected in (
            (("t", 0, -1, 10), [22, 0]),
            (("t", 0, -1, 1), [22]),
            (("t", 0, -1, 0), []),
            (("t", 0, -2, 10), [0]),
            (("t", 0, 2**62, 10), [22, 0]),
            (("t", 0, 1, 10), []),
            (("t", 1, -1, 10), [0]),
            (("unknown", 0, -1, -1), [0]),
            (("unknown", 0, -2, 100), [0]),
            (("unknown", 0, 5, 100), []),
        ):
            answer = struct.pack(
                f">ihi{len(expected)}q", 6 + 8 * len(expected), 0, len(expected), *expected
            )
            self.assertEqual(self.ask(encodeOffsets(*request)), (answer, False), request)
        self.assertIsNone(self.stored("unknown"))
        self.assertEqual(self.lead.counters.requests.offsetsCount, 10)

    def test_closing(self) -> None:
        """
        There is no way to say no but to close (gotcha 18): an illegal topic, a partition out of
        range, a negative count, a partition out of service.
        """
        self.ask(encodeProduce("t", 0, A))
        for request in (("..", 0, -1, 1), ("t", 2, -1, 1), ("t", -1, -1, 1), ("t", 0, -1, -1)):
            self.assertEqual(self.ask(encodeOffsets(*request)), (b"", True), request)
        self.lead.fileSystem.fail("fsync", ".kafka", errno.EIO)
        self.assertEqual(
            self.ask(encodeProduce("t", 0, A), encodeOffsets("t", 0, -1, 1)), (b"", True)
        )


class RoundTripTests(DialectTestCase):
    """What goes in comes out."""

    def test_consumerReadsBatches(self) -> None:
        """
        Plain, compressed and nested sets come back byte for byte, and decode to the messages that
        were sent (row 11, row 13).
        """
        nested = wrapCompressed(GZIP, A + wrapCompressed(GZIP, B + C))
        for data in (A, encodeSet([b"x", b"y"], GZIP), nested):
            self.ask(encodeProduce("t", 0, data))
        answer, _ = self.ask(encodeFetch("t", 0, 0, 10_000))
        self.assertEqual(
            [payload for payload, _ in MessageSet(answer[6:]).payloads()],
            [b"a", b"x", b"y", b"a", b"b", b"c"],
        )

    def test_snappy(self) -> None:
        """
        Snappy is taken as snappy-java's stream and as one raw block, kept as it came, and read back
        (row 12).
        """
        stream = encodeSet([b"x", b"y"], SNAPPY)
        block = encodeMessage(bytes(cramjam.snappy.compress_raw(B + C)), codec=SNAPPY)
        self.assertNotIn(b"SNAPPY", block)
        for data in (stream, block):
            self.assertEqual(self.ask(encodeProduce("t", 0, data)), (b"", False))
        self.assertEqual((self.stored(), self.counts()["messageCount"]), (stream + block, 4))
        answer, _ = self.ask(encodeFetch("t", 0, 0, 10_000))
        self.assertEqual(
            [payload for payload, _ in MessageSet(answer[6:]).payloads()], [b"x", b"y", b"b", b"c"]
        )

    def test_decodersShareRuns(self) -> None:
        """
        Connections share what they have learnt about topics; a thousand topics later all still
        works.
        """
        for number in range(1100):
            peer = self.lead.connect()
            peer.send(encodeProduce(f"t{number % 3}", 5 + number, A)[:-1])
            peer.close()
        self.assertEqual(self.ask(encodeProduce("t", 0, A)), (b"", False))
        self.assertEqual(self.stored(), A)
