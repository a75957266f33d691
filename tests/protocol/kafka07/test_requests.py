"""
Tests of requests, both sides.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import FrameSizeError, UnknownRequestError, WireError
from pylogbroker.protocol.kafka07.requests import (
    COUNT_MAX,
    Fetch,
    MultiFetch,
    MultiProduce,
    Offsets,
    Produce,
    ProduceRuns,
    Request,
    RequestDecoder,
    decodeRequest,
    encodeFetch,
    encodeMultiFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.records.messageset import encodeMessage, encodeSet
from tests.fuzz import golden
from tests.fuzz.promises import cut, encode, readPieces, readWhole, requestBody, single

HELLO = encodeMessage(b"hello")
SIZE_MAX = 100 << 20

VECTORS: dict[str, tuple[str, bytes, Request]] = {
    "PRODUCE test/0 [hello, there]": (
        "0000002e 0000 0004 74657374 00000000 0000001e 0000000b01003610a68668656c6c6f "
        "0000000b01005a2fe9967468657265",
        encodeProduce("test", 0, encodeSet([b"hello", b"there"])),
        Produce("test", 0, [encodeSet([b"hello", b"there"])]),
    ),
    "PRODUCE test/-1 [hello]": (
        "0000001f 0000 0004 74657374 ffffffff 0000000f 0000000b01003610a68668656c6c6f",
        encodeProduce("test", -1, HELLO),
        Produce("test", -1, [HELLO]),
    ),
    "MULTIPRODUCE test/0 [a], other/-1 [b]": (
        "00000037 0003 0002 0004 74657374 00000000 0000000b 00000007 0100e8b7be43 61 0005 "
        "6f74686572 ffffffff 0000000b 00000007 010071beeff9 62",
        encodeMultiProduce([("test", 0, encodeMessage(b"a")), ("other", -1, encodeMessage(b"b"))]),
        MultiProduce(
            [Produce("test", 0, [encodeMessage(b"a")]), Produce("other", -1, [encodeMessage(b"b")])]
        ),
    ),
    "FETCH test/0 @0 max 10000": (
        "00000018 0001 0004 74657374 00000000 0000000000000000 00002710",
        encodeFetch("test", 0, 0, 10000),
        Fetch("test", 0, 0, 10000),
    ),
    "MULTIFETCH test/0@0/10000, test2/1@54/300": (
        "00000031 0002 0002 0004 74657374 00000000 0000000000000000 00002710 0005 7465737432 "
        "00000001 0000000000000036 0000012c",
        encodeMultiFetch([("test", 0, 0, 10000), ("test2", 1, 54, 300)]),
        MultiFetch([Fetch("test", 0, 0, 10000), Fetch("test2", 1, 54, 300)]),
    ),
    "OFFSETS test/0 time -1 max 10": (
        "00000018 0004 0004 74657374 00000000 ffffffffffffffff 0000000a",
        encodeOffsets("test", 0, -1, 10),
        Offsets("test", 0, -1, 10),
    ),
}

TOPICS = st.text(max_size=12).filter(
    lambda name: not any(0xD800 <= ord(character) < 0xE000 for character in name)
)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
SETS = st.binary(max_size=60)
FETCHES = st.builds(Fetch, TOPICS, INTS, LONGS, INTS)
PRODUCES = st.builds(Produce, TOPICS, INTS, SETS.map(lambda data: [data]))
REQUESTS = st.one_of(
    PRODUCES,
    st.builds(Produce, st.just("topic"), st.integers(0, 1), SETS.map(lambda data: [data])),
    FETCHES,
    st.builds(Offsets, TOPICS, INTS, LONGS, INTS),
    st.lists(FETCHES, max_size=3).map(MultiFetch),
    st.lists(PRODUCES, max_size=3).map(MultiProduce),
)


class Endless(bytes):
    """Bytes that say how many they are, for lack of a machine that would spend 2 GiB on a test."""

    claim = 2**31

    def __len__(self) -> int:
        return self.claim


class Fitting(Endless):
    """As many as a size field can say, so that the frame around them is too large."""

    claim = 2**31 - 1


class VectorTests(SynchronousTestCase):
    """The requests of spec-0.7 wire-protocol §12."""

    def test_encode(self) -> None:
        """Each is written to exactly the bytes of the specification."""
        for name, (text, encoded, _) in VECTORS.items():
            self.assertEqual(encoded, bytes.fromhex(text), name)

    def test_decode(self) -> None:
        """Each is read to exactly its fields, by itself and by a broker's decoder."""
        for name, (text, _, request) in VECTORS.items():
            frame = bytes.fromhex(text)
            self.assertEqual(decodeRequest(frame[4:]), request, name)
            self.assertEqual(readPieces([frame]), ([request], None), name)

    def test_fetchSize(self) -> None:
        """A FETCH body is 2 + topic + 16 bytes behind its type (§3.2)."""
        for topic in ("", "t", "tóp"):
            self.assertEqual(len(encodeFetch(topic, 0, 0, 0)), 4 + 2 + 2 + len(topic.encode()) + 16)


class EncodeTests(SynchronousTestCase):
    """What an application asks for that no request can hold is a ValueError."""

    def test_topicTooLong(self) -> None:
        """A topic of 32767 bytes, not characters, fits; one byte more does not, in no request."""
        good, bad = "ü" * 16383 + "x", "ü" * 16384
        calls: list[Callable[[str], bytes]] = [
            lambda topic: encodeProduce(topic, 0, b""),
            lambda topic: encodeMultiProduce([(topic, 0, b"")]),
            lambda topic: encodeFetch(topic, 0, 0, 0),
            lambda topic: encodeMultiFetch([(topic, 0, 0, 0)]),
            lambda topic: encodeOffsets(topic, 0, 0, 0),
        ]
        for call in calls:
            self.assertIn(good.encode(), call(good))
            self.assertRaises(ValueError, call, bad)

    def test_tooManyParts(self) -> None:
        """32767 parts fit in one request, one more does not (§3.3, §3.4)."""
        parts: list[tuple[Callable[[Any], bytes], tuple[object, ...]]] = [
            (encodeMultiFetch, ("", 0, 0, 0)),
            (encodeMultiProduce, ("", 0, b"")),
        ]
        for call, part in parts:
            decoded = decodeRequest(call([part] * COUNT_MAX)[4:])
            assert isinstance(decoded, MultiFetch | MultiProduce)
            self.assertEqual(len(decoded[0]), COUNT_MAX)
            self.assertRaises(ValueError, call, [part] * (COUNT_MAX + 1))

    def test_partsFromAnywhere(self) -> None:
        """Parts may come from any iterable; none are a request, too (count 0 is legal)."""
        self.assertEqual(encodeMultiFetch(iter([])).hex(), "0000000400020000")
        self.assertEqual(
            encodeMultiProduce(part for part in [("t", 1, HELLO)]),
            encodeMultiProduce([("t", 1, HELLO)]),
        )

    def test_numbersThatDoNotFit(self) -> None:
        """
        A partition, offset, time or size beyond its field is a ValueError, in both directions; the
        limits themselves fit.
        """
        for big in (2**31, -(2**31) - 1):
            for call in (
                lambda big=big: encodeProduce("t", big, b""),
                lambda big=big: encodeMultiProduce([("t", big, b"")]),
                lambda big=big: encodeFetch("t", big, 0, 0),
                lambda big=big: encodeFetch("t", 0, 0, big),
                lambda big=big: encodeMultiFetch([("t", 0, 0, big)]),
                lambda big=big: encodeOffsets("t", 0, 0, big),
                lambda big=big: encodeFetch("t", 0, big << 32, 0),
                lambda big=big: encodeOffsets("t", 0, big << 32, 0),
            ):
                self.assertRaises(ValueError, call)
        for request in (
            Fetch("t", -(2**31), -(2**63), -(2**31)),
            Fetch("t", 2**31 - 1, 2**63 - 1, 2**31 - 1),
        ):
            self.assertEqual(decodeRequest(encodeFetch(*request)[4:]), request)

    def test_tooLargeForAFrame(self) -> None:
        """
        A message set of 2 GiB, or one that fits its own field and not the frame's, is a ValueError.
        """
        for data in (Endless(), Fitting()):
            self.assertRaises(ValueError, encodeProduce, "t", 0, data)
            self.assertRaises(ValueError, encodeMultiProduce, [("t", 0, data)])


class DecodeTests(SynchronousTestCase):
    """Frames to requests: spec-0.7 wire-protocol §3, and the rows of §9 that the wire decides."""

    @given(REQUESTS)
    def test_roundTrip(self, request: Request) -> None:
        """What was encoded is decoded to the same fields."""
        self.assertEqual(decodeRequest(encode(request)[4:]), request)

    def test_unknownType(self) -> None:
        """A type that is none of the five is UnknownRequest."""
        for kind in (5, 6, 255, 32767, -1, -32768):
            error = self.assertRaises(
                UnknownRequestError, decodeRequest, struct.pack(">h", kind) + bytes(50)
            )
            self.assertIn(f"request type {kind};", str(error))

    def test_everyCut(self) -> None:
        """A body shorter than its fields is a WireError, wherever it ends, for every request."""
        for text, _, request in VECTORS.values():
            body = bytes.fromhex(text)[4:]
            for size in range(len(body)):
                error = self.assertRaises(WireError, decodeRequest, body[:size])
                self.assertNotIsInstance(error, UnknownRequestError)
            self.assertEqual(decodeRequest(body), request)

    def test_extraBytes(self) -> None:
        """
        Bytes behind a complete body are ignored, also behind a message set that is smaller than its
        frame.
        """
        for text, _, request in VECTORS.values():
            self.assertEqual(decodeRequest(bytes.fromhex(text)[4:] + b"more"), request)

    def test_nullTopic(self) -> None:
        """A negative topic length, which is Java's null, is a WireError in every request."""
        for kind in range(5):
            count = b"\x00\x01" if kind in (2, 3) else b""
            for size in (-1, -32768):
                self.assertRaises(
                    WireError,
                    decodeRequest,
                    struct.pack(">h", kind) + count + struct.pack(">h", size) + bytes(50),
                )

    def test_emptyTopic(self) -> None:
        """An empty topic can be read; to refuse it is not the wire's affair."""
        self.assertEqual(decodeRequest(encodeFetch("", 0, 0, 0)[4:]), Fetch("", 0, 0, 0))

    def test_topicLongerThanTheFrame(self) -> None:
        """A topic that goes beyond its frame is a WireError that says by how much."""
        error = self.assertRaises(WireError, decodeRequest, bytes.fromhex("0001 7fff 74"))
        self.assertEqual(str(error), "topic of 32767 bytes at byte 4, where 1 are left")

    def test_malformedUtf8(self) -> None:
        """
        Malformed UTF-8 in a topic becomes U+FFFD, by both ways of decoding, as in Java; the rules
        for names refuse it then.
        """
        frame = encodeProduce("xx", 0, HELLO).replace(b"xx", b"\xc3x")
        self.assertEqual(decodeRequest(frame[4:]), Produce("\ufffdx", 0, [HELLO]))
        self.assertEqual(readPieces([frame]), ([Produce("\ufffdx", 0, [HELLO])], None))

    def test_messageSetSize(self) -> None:
        """
        A message set size that is negative, or more than what is left, is a WireError; 0 is an
        empty set.
        """
        body = encodeProduce("t", 0, HELLO)[4:]
        for size in (-1, -(2**31), 16, 2**31 - 1):
            self.assertRaises(WireError, decodeRequest, body[:9] + struct.pack(">i", size) + HELLO)
        self.assertEqual(decodeRequest(body[:9] + bytes(4)), Produce("t", 0, [b""]))

    def test_counts(self) -> None:
        """
        A negative count is a WireError, a count of 0 a request, a count of more parts than there
        are a WireError.
        """
        for kind, empty in ((2, MultiFetch([])), (3, MultiProduce([]))):
            self.assertEqual(decodeRequest(struct.pack(">hh", kind, 0)), empty)
            for count in (-1, -32768, 1, 32767):
                self.assertRaises(WireError, decodeRequest, struct.pack(">hh", kind, count))

    def test_allPartsAreParsedFirst(self) -> None:
        """
        A structural error in any part of a MULTIPRODUCE is an error of the whole: none of it is
        carried out.
        """
        body = encodeMultiProduce([("a", 0, HELLO), ("b", 0, HELLO)])[4:]
        self.assertRaises(WireError, decodeRequest, body[:-1])

    def test_announcedSizesAllocateNothing(self) -> None:
        """
        Counts, topic sizes and set sizes up to their maximum in a small frame allocate less than 16
        KiB.
        """
        texts = (
            "0002 7fff",
            "0003 7fff",
            "0001 7fff",
            "0000 0001 74 00000000 7fffffff",
            "0003 7fff 0001 74 00000000 7fffffff",
        )
        bodies = [bytes.fromhex(text) for text in texts]
        tracemalloc.start()
        try:
            for body in bodies:
                self.assertRaises(WireError, decodeRequest, body)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 1 << 14)

    @given(st.binary(max_size=60))
    def test_anything(self, body: bytes) -> None:
        """Any bytes are a WireError, or a request that encodes to what was there."""
        requestBody(body)


class DecoderTests(SynchronousTestCase):
    """A broker's end of a connection: bytes in, requests out."""

    @given(st.lists(REQUESTS, max_size=8), st.lists(st.integers(0, 600), max_size=12))
    def test_cutAnywhere(self, requests: list[Request], positions: list[int]) -> None:
        """
        However the stream is cut up, and whether it is asked at once or at the end, the same
        requests come out.
        """
        stream = b"".join(map(encode, requests))
        pieces = cut(stream, positions)
        expected = list(single(requests))
        self.assertEqual(readPieces(pieces), (expected, None))
        self.assertEqual(readPieces(pieces, patient=True), (expected, None))

    def test_everyCutOfTheVectors(self) -> None:
        """
        The stream of all vectors, cut in two at every byte, and byte by byte, gives the same
        requests.
        """
        stream = b"".join(bytes.fromhex(text) for text, _, _ in VECTORS.values())
        expected = list(single(request for _, _, request in VECTORS.values())), None
        for at in range(len(stream)):
            self.assertEqual(readPieces(cut(stream, [at])), expected)
        self.assertEqual(readPieces(cut(stream, range(len(stream)))), expected)

    def test_run(self) -> None:
        """
        PRODUCE requests in a row for one partition come as one Produce with a set for each, in
        order; empty sets among them.
        """
        sets = [HELLO, b"", HELLO * 2]
        decoder = RequestDecoder(SIZE_MAX)
        decoder.feed(
            b"".join(encodeProduce("t", 0, data) for data in sets)
            + encodeProduce("t", 0, HELLO)[:-1]
        )
        self.assertEqual(decoder.takeRequest(), Produce("t", 0, sets))
        self.assertIs(decoder.takeRequest(), None)
        decoder.feed(HELLO[-1:])
        self.assertEqual(
            [decoder.takeRequest(), decoder.takeRequest()], [Produce("t", 0, [HELLO]), None]
        )
        self.assertEqual(decoder.heldSize, 0)

    def test_runEnds(self) -> None:
        """
        PRODUCE requests in a row come together, by partition in the order of the first of each; the
        run ends at another request.
        """
        frames = [
            encodeProduce("t", 0, HELLO),
            encodeProduce("t", 1, HELLO),
            encodeProduce("u", 1, HELLO),
            encodeProduce("uu", 1, HELLO),
            encodeProduce("u", 1, HELLO),
            encodeFetch("u", 1, 0, 10),
            encodeProduce("u", 1, HELLO),
            encodeMultiProduce([("u", 1, HELLO)]),
            encodeProduce("u", 1, HELLO),
        ]
        decoder = RequestDecoder(SIZE_MAX)
        decoder.feed(b"".join(frames))
        found = []
        while (request := decoder.takeRequest()) is not None:
            found.append(request)
        self.assertEqual(
            found,
            [
                ProduceRuns(
                    [
                        Produce("t", 0, [HELLO]),
                        Produce("t", 1, [HELLO]),
                        Produce("u", 1, [HELLO, HELLO]),
                        Produce("uu", 1, [HELLO]),
                    ]
                ),
                *(decodeRequest(frame[4:]) for frame in frames[5:]),
            ],
        )

    def test_irregularAmongRegular(self) -> None:
        """
        A PRODUCE with bytes behind its set, between others, is decoded like any; those before and
        behind it keep their place.
        """
        regular = encodeProduce("t", 0, HELLO)
        padded = struct.pack(">i", len(regular)) + regular[4:] + b"junk"
        stream = regular * 2 + padded + regular
        decoder = RequestDecoder(SIZE_MAX)
        decoder.feed(stream)
        self.assertEqual(
            [
                len(request.sets)
                for request in iter(decoder.takeRequest, None)
                if isinstance(request, Produce)
            ],
            [2, 1, 1],
        )

    def test_badAmongGood(self) -> None:
        """
        Requests before a bad one come out; the bad one is then raised, and what stands behind it is
        not looked at.
        """
        regular = encodeProduce("t", 0, HELLO)
        bad = regular[:13] + struct.pack(">i", 1000) + regular[17:]
        nonsense: dict[bytes, type[WireError]] = {
            bad: WireError,
            bytes(4): FrameSizeError,
            struct.pack(">i", SIZE_MAX + 1) + regular[4:]: FrameSizeError,
            struct.pack(">ih", 2, 9): UnknownRequestError,
            struct.pack(">ib", 1, 0): WireError,
        }
        for data, error in nonsense.items():
            decoder = RequestDecoder(SIZE_MAX)
            decoder.feed(regular * 2 + data + regular)
            self.assertEqual(decoder.takeRequest(), Produce("t", 0, [HELLO, HELLO]))
            self.assertIs(type(self.assertRaises(WireError, decoder.takeRequest)), error)

    def test_limit(self) -> None:
        """
        A PRODUCE of exactly the frame limit is taken, one byte more is refused, in a run, too.
        """
        frame = encodeProduce("t", 0, HELLO)
        good, bad = RequestDecoder(len(frame) - 4), RequestDecoder(len(frame) - 5)
        for decoder in (good, bad):
            decoder.feed(frame * 2)
        self.assertEqual(good.takeRequest(), Produce("t", 0, [HELLO, HELLO]))
        self.assertRaises(FrameSizeError, bad.takeRequest)

    def test_longTopics(self) -> None:
        """
        A topic as long as its field allows is decoded, though it is too long for the table of runs.
        """
        for topic in ("x" * 1024, "x" * 1025, "x" * 32767):
            request = Produce(topic, 5, [HELLO])
            self.assertEqual(readPieces([encode(request) * 2]), ([request, request], None))

    def test_tableIsShared(self) -> None:
        """Connections that share a table learn from one another, and read the same."""
        table: dict[bytes, tuple[str, int, struct.Struct]] = {}
        decoders = [RequestDecoder(SIZE_MAX, table) for _ in range(2)]
        for decoder in decoders:
            decoder.feed(encodeProduce("t", 7, HELLO))
            self.assertEqual(decoder.takeRequest(), Produce("t", 7, [HELLO]))
        self.assertEqual(len(table), 1)

    def test_tableStaysSmall(self) -> None:
        """
        Thousands of topics, long ones among them, leave a table of a thousand entries and 4 MiB at
        most, and are all decoded right.
        """
        table: dict[bytes, tuple[str, int, struct.Struct]] = {}
        decoder = RequestDecoder(SIZE_MAX, table)
        tracemalloc.start()
        try:
            for number in range(3000):
                topic = ("𝄞" * 256 if number % 2 else "𝄞" * 8000)[:-5] + f"{number:05}"
                decoder.feed(encodeProduce(topic, number, HELLO))
                self.assertEqual(decoder.takeRequest(), Produce(topic, number, [HELLO]))
                self.assertLessEqual(len(table), 1024)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertGreater(len(table), 100)
        self.assertLess(held, 4 << 20)


class GoldenTests(SynchronousTestCase):
    """What real clients sent."""

    def test_everyRecordedRequest(self) -> None:
        """
        Every recorded stream is read the same in one piece, in two, byte by byte, and frame by
        frame.
        """
        streams = golden.requests()
        self.assertGreater(len(streams), 100)
        for name, stream in streams:
            expected = readWhole(stream, SIZE_MAX)
            self.assertEqual(readPieces([stream], frameSizeMax=SIZE_MAX), expected, name)
            self.assertEqual(
                readPieces(cut(stream, [len(stream) // 2]), frameSizeMax=SIZE_MAX), expected, name
            )
            self.assertEqual(
                readPieces(cut(stream[:600], range(600)), frameSizeMax=SIZE_MAX),
                readWhole(stream[:600], SIZE_MAX),
                name,
            )

    def test_whatStaysOpenIsUnderstood(self) -> None:
        """0.7.2 left the connection open after a request only if we can decode it."""
        for case in golden.cases():
            requests, error = readWhole(bytes.fromhex(case["request"]), SIZE_MAX)
            if case["connection"] == "open":
                self.assertIs(error, None, case["name"])
                self.assertGreater(len(requests), 0, case["name"])

    def test_clients(self) -> None:
        """
        What 0.7.2's performance producer sent: PRODUCE from the sync one, MULTIPRODUCE from the
        async one, all to partition -1.
        """
        kinds = {}
        for name, stream in golden.requests():
            if name.endswith(".hex"):
                ((request,), error) = readWhole(stream, SIZE_MAX)
                self.assertIs(error, None)
                self.assertEqual(encode(request), stream)
                produces = request.produces if isinstance(request, MultiProduce) else [request]
                self.assertTrue(
                    all(
                        isinstance(each, Produce)
                        and each.partition == -1
                        and each.topic.startswith("rec-")
                        for each in produces
                    )
                )
                kinds[name.split("-")[1]] = type(request)
        self.assertEqual(kinds, {"sync": Produce, "async": MultiProduce})

    def test_singleTakesRunsApart(self) -> None:
        """Runs, taken apart, are the requests that were sent."""
        requests: list[Request] = [Produce("t", 0, [HELLO, b""]), Fetch("t", 0, 0, 0)]
        self.assertEqual(
            list(single(requests)),
            [Produce("t", 0, [HELLO]), Produce("t", 0, [b""]), Fetch("t", 0, 0, 0)],
        )
