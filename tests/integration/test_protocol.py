"""
The protocol of 0.7 over a socket, feature by feature (rows 1 to 24 of the feature checklist),
against a whole broker.
"""

from __future__ import annotations

import os
import socket
import struct
import zlib
from pathlib import Path

from crcmod.predefined import mkPredefinedCrcFun

from pylogbroker.errors import FormatError
from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeOffsets, encodeProduce
from pylogbroker.protocol.kafka07.responses import decodeFetch
from pylogbroker.records.compression import CODEC_NAMES, GZIP, SNAPPY, compress
from pylogbroker.records.messageset import MessageSet, encodeMessage, encodeSet, wrapCompressed
from pylogbroker.types import EARLIEST, LATEST
from tests.integration.rawclient import RawClient
from tests.integration.threaded import BrokerCase, inThread

HELLO = bytes.fromhex("0000000b 01 00 3610a686 68656c6c6f")
THERE = bytes.fromhex("0000000b 01 00 5a2fe996 7468657265")


class VectorTests(BrokerCase):
    """The vectors of spec-0.7 wire-protocol §12, byte for byte."""

    @inThread
    def test_vectors(self) -> None:
        """
        PRODUCE, MULTIPRODUCE, FETCH, MULTIFETCH and OFFSETS, sent as recorded, are answered as
        recorded.
        """
        self.serve({"topic.partition.count.map": "test2:2"})
        client = self.client()
        client.send(bytes.fromhex("0000002e 0000 0004 74657374 00000000 0000001e") + HELLO + THERE)
        client.send(bytes.fromhex("00000018 0001 0004 74657374 00000000 0000000000000000 00002710"))
        self.assertEqual(client.receive(36), bytes.fromhex("00000020 0000") + HELLO + THERE)
        both = (
            "0004 74657374 00000000 0000000b 00000007 0100e8b7be43 61 0005 6f74686572 ffffffff"
            " 0000000b 00000007 010071beeff9 62"
        )
        client.send(bytes.fromhex("00000037 0003 0002" + both))
        client.send(
            bytes.fromhex(
                "00000031 0002 0002 0004 74657374 00000000 000000000000001e 00002710 0005"
                " 7465737432 00000001 0000000000000000 0000012c"
            )
        )
        self.assertEqual(
            client.receive(29),
            bytes.fromhex("00000019 0000 0000000d 0000 00000007 0100e8b7be43 61 00000002 0000"),
        )
        client.send(bytes.fromhex("00000018 0004 0004 74657374 00000000 ffffffffffffffff 0000000a"))
        self.assertEqual(
            client.receive(26),
            bytes.fromhex("00000016 0000 00000002 0000000000000029 0000000000000000"),
        )
        client.send(bytes.fromhex("00000018 0001 0004 74657374 00000000 0000000000000063 00002710"))
        self.assertEqual(client.receive(6), bytes.fromhex("00000002 0001"))

    @inThread
    def test_framing(self) -> None:
        """
        A request that comes byte by byte is the same request; the size of an answer counts what
        follows it.
        """
        self.serve()
        client = self.client()
        for byte in encodeProduce("t", 0, HELLO):
            client.send(bytes([byte]))
        for byte in encodeFetch("t", 0, 0, 100):
            client.send(bytes([byte]))
        self.assertEqual(
            client.receive(4 + 2 + len(HELLO)), struct.pack(">ih", 2 + len(HELLO), 0) + HELLO
        )


class RequestTests(BrokerCase):
    """What each request does."""

    @inThread
    def test_produceHasNoAnswer(self) -> None:
        """
        The first bytes that come back after PRODUCE and MULTIPRODUCE are the answer to the request
        behind them.
        """
        self.serve()
        client = self.client()
        client.produce("t", 0, HELLO)
        client.multiProduce([("t", 0, THERE), ("u", 0, HELLO)])
        client.send(encodeOffsets("nothing", 0, LATEST, 1))
        self.assertEqual(client.receive(18), struct.pack(">ihiq", 14, 0, 1, 0))
        self.assertEqual(client.fetch("t", 0, 0), (0, HELLO + THERE))

    @inThread
    def test_multiProduce(self) -> None:
        """
        MULTIPRODUCE appends to several topics and partitions; the same again doubles what is there.
        """
        self.serve({"num.partitions": "2"})
        client = self.client()
        produces = [("a", 0, HELLO), ("a", 1, THERE), ("b", 0, THERE + HELLO)]
        for times in (1, 2):
            client.multiProduce(produces)
            for topic, partition, data in produces:
                self.assertEqual(client.fetch(topic, partition, 0), (0, data * times))

    @inThread
    def test_fetch(self) -> None:
        """FETCH answers with the bytes from an offset on, at most as many as it asked for."""
        self.serve()
        client = self.client()
        client.produce("t", 0, HELLO + THERE)
        self.assertEqual(client.fetch("t", 0, 0), (0, HELLO + THERE))
        self.assertEqual(client.fetch("t", 0, 15), (0, THERE))
        self.assertEqual(client.fetch("t", 0, 0, 20), (0, HELLO + THERE[:5]))
        self.assertEqual(client.fetch("t", 0, 7, 3), (0, HELLO[7:10]))
        self.assertEqual(client.fetch("t", 0, 0, 0), (0, b""))
        self.assertEqual(client.fetch("t", 0, 30), (0, b""))

    @inThread
    def test_multiFetch(self) -> None:
        """MULTIFETCH answers in the order of the question, each part with its own code."""
        self.serve()
        client = self.client()
        client.produce("a", 0, HELLO)
        client.produce("b", 0, THERE)
        asked = [
            ("b", 0, 0, 100),
            ("a", 0, 99, 100),
            ("a", 7, 0, 100),
            ("nothing", 0, 5, 100),
            ("a/b", 0, 0, 100),
            ("a", 0, 0, 100),
        ]
        self.assertEqual(
            client.multiFetch(asked),
            [(0, THERE), (1, b""), (3, b""), (0, b""), (-1, b""), (0, HELLO)],
        )
        self.assertEqual(client.multiFetch([]), [])

    @inThread
    def test_offsets(self) -> None:
        """
        OFFSETS: 240, 216, 108, 0 for twenty entries of twelve bytes in segments of a hundred; the
        earliest is 0.
        """
        self.serve({"log.file.size": "100"})
        client = self.client()
        entry = encodeMessage(b"12")
        for _ in range(20):
            client.produce("t", 0, entry)
        client.processed()
        self.assertEqual(client.offsets("t", 0, LATEST, 10), [240, 216, 108, 0])
        self.assertEqual(client.offsets("t", 0, LATEST, 2), [240, 216])
        self.assertEqual(client.offsets("t", 0, EARLIEST, 10), [0])
        self.assertEqual(client.offsets("t", 0, LATEST, 0), [])
        self.assertEqual(client.offsets("t", 0, 0, 10), [])
        self.assertEqual(client.offsets("t", 0, 2**62, 10), [240, 216, 108, 0])

    @inThread
    def test_randomPartition(self) -> None:
        """
        A thousand produce requests for partition -1 spread over all four partitions, each set in
        one piece.
        """
        self.serve({"num.partitions": "4"})
        client = self.client()
        for number in range(1000):
            client.produce("t", -1, encodeSet([b"%d" % number, b"again %d" % number]))
        found = [client.payloads("t", partition) for partition in range(4)]
        self.assertEqual(sum(map(len, found)), 2000)
        self.assertGreater(min(map(len, found)), 2000 // 16)
        for payloads in found:
            self.assertEqual([b"again " + payload for payload in payloads[::2]], payloads[1::2])

    @inThread
    def test_codes(self) -> None:
        """
        Fetching answers 0, 1 (below, beyond, negative), 3 (no such partition) and -1 (illegal
        topic), and the connection stays.
        """
        self.serve()
        client = self.client()
        client.produce("t", 0, HELLO)
        for code, topic, partition, offset in (
            (0, "t", 0, 0),
            (0, "t", 0, 15),
            (1, "t", 0, 16),
            (1, "t", 0, -1),
            (3, "t", 1, 0),
            (3, "t", -1, 0),
            (3, "nothing", 1, 0),
            (-1, ".", 0, 0),
            (-1, "", 0, 0),
        ):
            self.assertEqual(
                client.fetch(topic, partition, offset)[0], code, (topic, partition, offset)
            )

    @inThread
    def test_unknownTopic(self) -> None:
        """
        A topic that nobody produced to is empty at every offset, its offsets are [0], and asking
        creates nothing.
        """
        self.serve()
        client = self.client()
        for offset in (0, 1000, -5):
            self.assertEqual(client.fetch("nothing", 0, offset), (0, b""))
        self.assertEqual(client.offsets("nothing", 0, LATEST, 10), [0])
        self.assertEqual(client.offsets("nothing", 0, EARLIEST, 10), [0])
        self.assertEqual(client.offsets("nothing", 0, 12345, 10), [])
        self.assertEqual(
            [name for name in os.listdir(self.broker.directory) if "nothing" in name], []
        )


class MessageTests(BrokerCase):
    """What messages may be."""

    @inThread
    def test_magic0(self) -> None:
        """
        Magic 0 is taken and given back byte for byte; so is 0.7.2's own segment of it: a hundred
        entries of 109 bytes.
        """
        shipped = bytes.fromhex("00000069 00 5e0e5d8f") + b"x" * 100
        self.assertEqual(encodeMessage(b"x" * 100, magic=0), shipped)
        directory = self.mktemp()
        os.makedirs(os.path.join(directory, "old-0"))
        Path(directory, "old-0", "0" * 20 + ".kafka").write_bytes(shipped * 100)
        self.serve(directory=directory)
        client = self.client()
        self.assertEqual(client.payloads("old"), [b"x" * 100] * 100)
        hello = bytes.fromhex("0000000a 00 3610a686 68656c6c6f")
        client.produce("old", 0, hello)
        self.assertEqual(client.fetch("old", 0, 10900), (0, hello))

    @inThread
    def test_magic1(self) -> None:
        """
        Magic 1 is taken and given back byte for byte, bits of the attributes that mean nothing
        included.
        """
        self.serve()
        client = self.client()
        odd = bytearray(HELLO)
        odd[5] = 0xFC
        client.produce("t", 0, HELLO + bytes(odd))
        self.assertEqual(client.fetch("t", 0, 0), (0, HELLO + bytes(odd)))
        [(first, _), (second, _)] = MessageSet(HELLO + bytes(odd))
        self.assertEqual(
            (first.attributes, second.attributes, second.codec, second.payload),
            (0, 0xFC, 0, b"hello"),
        )

    @inThread
    def test_checksum(self) -> None:
        """
        A flipped bit of a payload closes the connection, and nothing of its set is stored; the
        checksum is CRC-32 by an independent judge.
        """
        self.serve()
        crc = mkPredefinedCrcFun("crc-32")
        self.assertEqual(
            struct.unpack_from(">I", encodeMessage(b"any payload"), 6)[0], crc(b"any payload")
        )
        broken = bytearray(HELLO + THERE)
        broken[-1] ^= 1
        client = self.client()
        client.produce("t", 0, bytes(broken))
        self.assertTrue(client.isClosed())
        other = self.client()
        self.assertEqual(other.end("t"), 0)
        broken[-1] ^= 1
        other.produce("t", 0, bytes(broken))
        self.assertEqual(other.end("t"), 30)

    @inThread
    def test_gzip(self) -> None:
        """
        A gzip wrapper is stored as it came, and opens to its messages; next offsets are the
        wrapper's start but for the last one's.
        """
        self._compressed(GZIP)

    @inThread
    def test_snappy(self) -> None:
        """A snappy wrapper likewise, as snappy-java's stream and as one raw block."""
        self._compressed(SNAPPY)
        inner = encodeSet([b"raw", b"block"])
        stream = compress(SNAPPY, inner)
        self.assertEqual(stream[:8], bytes.fromhex("82534e4150505900"))
        raw = stream[20:]
        self.assertEqual(struct.unpack_from(">i", stream, 16)[0], len(raw))
        wrapper = struct.pack(">ibbI", 6 + len(raw), 1, SNAPPY, zlib.crc32(raw)) + raw
        client = self.client()
        client.produce("raw", 0, wrapper)
        self.assertEqual(client.payloads("raw"), [b"raw", b"block"])

    def _compressed(self, codec: int) -> None:
        self.serve()
        client = self.client()
        payloads = [b"payload %d" % number for number in range(100)]
        wrapper = encodeSet(payloads, codec=codec)
        self.assertLess(len(wrapper), len(encodeSet(payloads)))
        client.produce("t", 0, HELLO + wrapper)
        code, data = client.fetch("t", 0, 0)
        self.assertEqual((code, data), (0, HELLO + wrapper))
        found = list(MessageSet(data).payloads())
        self.assertEqual([payload for payload, _ in found], [b"hello", *payloads])
        self.assertEqual([offset for _, offset in found], [15] * 100 + [15 + len(wrapper)])

    @inThread
    def test_nested(self) -> None:
        """A wrapper within a wrapper, plain messages beside it, is taken, and flattens in order."""
        self.serve()
        client = self.client()
        nested = wrapCompressed(
            GZIP,
            encodeMessage(b"a")
            + wrapCompressed(SNAPPY, encodeSet([b"b", b"c"]))
            + encodeMessage(b"d", magic=0),
        )
        client.produce("t", 0, nested)
        self.assertEqual(client.fetch("t", 0, 0), (0, nested))
        self.assertEqual(client.payloads("t"), [b"a", b"b", b"c", b"d"])
        self.assertEqual({CODEC_NAMES[codec] for codec in (GZIP, SNAPPY)}, {"gzip", "snappy"})

    @inThread
    def test_emptyPayloads(self) -> None:
        """
        Messages without a payload, of six bytes (magic 1) and of five (magic 0), are messages.
        """
        self.serve()
        client = self.client()
        data = bytes.fromhex("00000006 01 00 00000000") + bytes.fromhex("00000005 00 00000000")
        client.produce("t", 0, data)
        self.assertEqual(client.fetch("t", 0, 0), (0, data))
        self.assertEqual(client.payloads("t"), [b"", b""])


class LimitTests(BrokerCase):
    """What is too large."""

    @inThread
    def test_requestSize(self) -> None:
        """
        A request of exactly C{max.socket.request.bytes} is carried out; one byte more closes the
        connection.
        """
        self.serve({"max.socket.request.bytes": "1000"})
        client = self.client()
        empty = len(encodeProduce("t", 0, encodeMessage(b""))) - 4
        client.produce("t", 0, encodeMessage(b"x" * (1000 - empty)))
        self.assertEqual(client.end("t"), 10 + 1000 - empty)
        client.produce("t", 0, encodeMessage(b"x" * (1001 - empty)))
        self.assertTrue(client.isClosed())
        self.assertEqual(self.client().end("t"), 10 + 1000 - empty)

    @inThread
    def test_messageSize(self) -> None:
        """
        A payload of C{max.message.size} is stored. One byte more drops its set without a word, the
        connection stays, and it is counted.
        """
        self.serve({"max.message.size": "100"})
        client = self.client()
        client.produce("t", 0, encodeMessage(b"x" * 100))
        client.produce("t", 0, HELLO + encodeMessage(b"x" * 101))
        client.produce("t", 0, THERE)
        self.assertEqual(client.payloads("t"), [b"x" * 100, b"there"])
        self.assertEqual(self.broker.broker.service.counters.topic("t").failedProduceCount, 1)


class ConnectionTests(BrokerCase):
    """What connections may count on."""

    MALFORMED = (
        ("size 0", bytes(4)),
        ("a negative size", struct.pack(">i", -1)),
        ("a size over the limit", struct.pack(">i", 104857601)),
        ("size 1", struct.pack(">ib", 1, 0)),
        ("an unknown request", struct.pack(">ih", 2, 5)),
        ("a negative request", struct.pack(">ih", 2, -1)),
        ("a fetch without fields", struct.pack(">ih", 2, 1)),
        ("a topic longer than the frame", struct.pack(">ihh", 4, 1, 100)),
        ("a null topic", struct.pack(">ihhiqi", 20, 1, -1, 0, 0, 100)),
        ("a produce request of an illegal topic", encodeProduce("a/b", 0, HELLO)),
        ("a produce request of no partition", encodeProduce("t", 1, HELLO)),
        ("a produce request of partition -2", encodeProduce("t", -2, HELLO)),
        ("an offsets request of an illegal topic", encodeOffsets("..", 0, LATEST, 1)),
        ("an offsets request of no partition", encodeOffsets("t", 1, LATEST, 1)),
        ("a negative count of offsets", encodeOffsets("known", 0, LATEST, -1)),
        ("a negative count of fetches", struct.pack(">ihh", 4, 2, -1)),
        ("a negative count of produces", struct.pack(">ihh", 4, 3, -1)),
        ("a negative set size", struct.pack(">ihhbii", 13, 0, 1, ord("t"), 0, -1)),
        ("an entry that is cut", encodeProduce("t", 0, HELLO[:-1])),
        ("an entry of negative size", encodeProduce("t", 0, struct.pack(">i", -1) + HELLO)),
        (
            "an entry too small for its header",
            encodeProduce("t", 0, struct.pack(">i", 5) + b"\1\0\0\0\0"),
        ),
        ("an unknown magic", encodeProduce("t", 0, HELLO[:4] + b"\2" + HELLO[5:])),
        ("an unknown codec", encodeProduce("t", 0, HELLO[:5] + b"\3" + HELLO[6:])),
        ("compression that is none", encodeProduce("t", 0, HELLO[:5] + b"\1" + HELLO[6:])),
    )

    @inThread
    def test_malformed(self) -> None:
        """
        What cannot be understood closes its connection without a word, stores nothing, and no other
        connection notices.
        """
        self.serve()
        bystander = self.client()
        bystander.produce("known", 0, HELLO)
        for what, request in self.MALFORMED:
            client = self.client()
            client.send(request)
            self.assertTrue(client.isClosed(), what)
            self.assertEqual(bystander.end("known"), 15, what)
        self.assertEqual(bystander.end("t"), 0)

    @inThread
    def test_tolerated(self) -> None:
        """
        Bytes behind a whole body are ignored, a cut entry behind whole ones is left away, an empty
        set only creates the partition.
        """
        self.serve()
        client = self.client()
        request = encodeProduce("t", 0, HELLO)
        client.send(struct.pack(">i", len(request) - 4 + 3) + request[4:] + b"abc")
        client.produce("t", 0, THERE + HELLO[:7])
        client.produce("empty", 0, b"")
        self.assertEqual(client.fetch("t", 0, 0), (0, HELLO + THERE))
        self.assertTrue(os.path.isdir(os.path.join(self.broker.directory, "empty-0")))

    @inThread
    def test_pipelining(self) -> None:
        """A hundred fetches sent at once are answered in their order."""
        self.serve()
        client = self.client()
        entries = [encodeMessage(b"%d" % number) for number in range(100)]
        client.produce("t", 0, b"".join(entries))
        positions = [sum(map(len, entries[:number])) for number in range(100)]
        order = [(number * 37) % 100 for number in range(100)]
        client.send(
            b"".join(
                encodeFetch("t", 0, positions[number], len(entries[number])) for number in order
            )
        )
        self.assertEqual(
            [decodeFetch(client.receiveBody()) for _ in order],
            [(0, entries[number]) for number in order],
        )

    @inThread
    def test_sendAndClose(self) -> None:
        """Connect, send one produce request, close at once: the data is kept."""
        self.serve()
        for number in range(20):
            client = RawClient(self.broker.port)
            client.produce("t", 0, encodeMessage(b"%d" % number))
            client.close()
        watcher = self.client()
        while watcher.end("t") < sum(10 + len(b"%d" % number) for number in range(20)):
            pass
        self.assertEqual(sorted(map(int, watcher.payloads("t"))), list(range(20)))

    @inThread
    def test_manyClients(self) -> None:
        """
        Clients are served beside one another, whatever C{num.threads} says, also beside one that
        has stopped in the middle of a request.
        """
        self.serve({"num.threads": "3"})
        stuck = self.client()
        stuck.send(encodeProduce("t", 0, HELLO)[:-1])
        clients = [self.client() for _ in range(50)]
        for number, client in enumerate(clients):
            client.send(encodeProduce(f"t{number % 5}", 0, HELLO) + encodeFetch("nothing", 0, 0, 1))
        self.assertEqual(
            [decodeFetch(client.receiveBody()) for client in reversed(clients)], [(0, b"")] * 50
        )
        self.assertEqual([clients[0].end(f"t{number}") for number in range(5)], [150] * 5)
        stuck.send(encodeProduce("t", 0, HELLO)[-1:])
        self.assertEqual(stuck.end("t"), 15)

    @inThread
    def test_zeroCopy(self) -> None:
        """Every byte of a fetched message set leaves by C{sendfile}."""
        sent = []

        def counting(
            out: int, source: int, offset: int, count: int, sendfile: object = os.sendfile
        ) -> int:
            size: int = sendfile(out, source, offset, count)  # type: ignore[operator]
            sent.append(size)
            return size

        self.patch(os, "sendfile", counting)
        self.serve()
        client = self.client()
        data = encodeSet([b"x" * 1000] * 1000)
        client.produce("t", 0, data)
        self.assertEqual(client.fetch("t", 0, 0), (0, data))
        client.processed()  # the reactor has counted the last of it
        self.assertEqual(sum(sent), len(data))

    @inThread
    def test_socketBuffers(self) -> None:
        """The buffers of a connection have the size of the settings; C{TCP_NODELAY} is on."""
        self.serve({"socket.send.buffer": "30000", "socket.receive.buffer": "40000"})
        client = self.client()
        client.processed()
        [connection] = self.broker.broker.service.connections.open
        found = connection.transport.socket
        # Linux doubles what it is asked for, for its own bookkeeping.
        self.assertEqual(found.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), 60000)
        self.assertEqual(found.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF), 80000)
        self.assertTrue(found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    @inThread
    def test_fetchInTheMiddle(self) -> None:
        """
        A fetch from the middle of an entry gives raw bytes, and the client finds that they are no
        messages.
        """
        self.serve()
        client = self.client()
        client.produce("t", 0, HELLO)
        code, data = client.fetch("t", 0, 3)
        self.assertEqual((code, data), (0, HELLO[3:]))
        self.assertRaises(FormatError, list, MessageSet(data))
