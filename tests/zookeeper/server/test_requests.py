"""
Tests for L{pylogbroker.zookeeper.server.requests}, L{pylogbroker.zookeeper.server.jute} and
L{pylogbroker.zookeeper.server.transactions}: bytes are a request or a L{WireError}.
"""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol import serialization as wire
from kazoo.security import OPEN_ACL_UNSAFE
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import WireError
from pylogbroker.zookeeper.server.jute import Acl, JuteReader
from pylogbroker.zookeeper.server.requests import (
    ConnectRequest,
    CreateRequest,
    OpCode,
    decodeConnect,
    decodeRequest,
)
from pylogbroker.zookeeper.server.transactions import (
    CloseSession,
    CreateNode,
    CreateSession,
    DeleteNode,
    SetAcl,
    SetData,
    Several,
    decodeTransaction,
    encodeTransaction,
)
from tests.zookeeper.server.serverbench import ServerBench, create

VALID = [
    struct.pack(">ii", 1, request.type) + bytes(request.serialize())
    for request in (
        create("/a", b"data", 3),
        wire.Delete("/a", 5),
        wire.SetData("/a", None, 1),
        wire.SetACL("/a", OPEN_ACL_UNSAFE, 1),
        wire.GetData("/a", True),
        wire.GetChildren2("/a", None),
        wire.Transaction([create("/a"), wire.CheckVersion("/b", 1), wire.Delete("/c", 1)]),
        wire.Auth(0, "digest", "user:password"),
        wire.Sync("/"),
    )
]
_paths = st.text(max_size=20)
_acls = st.lists(
    st.builds(Acl, st.integers(0, 31), st.text(max_size=8), st.text(max_size=8)), max_size=3
).map(tuple)
_data = st.none() | st.binary(max_size=50)
_owners = st.integers(-(1 << 63), (1 << 63) - 1)
_changes = (
    st.builds(CreateNode, _paths, _data, _acls, _owners)
    | st.builds(DeleteNode, _paths)
    | st.builds(SetData, _paths, _data)
    | st.builds(SetAcl, _paths, _acls)
)
_transactions = (
    _changes
    | st.builds(CreateSession, _owners, st.integers(0, 1 << 30), st.binary(max_size=16))
    | st.builds(CloseSession, _owners)
    | st.builds(Several, st.lists(_changes, max_size=4).map(tuple))
)


class RequestTests(SynchronousTestCase):
    """Requests, by kazoo's encoders."""

    def test_create(self) -> None:
        """A request is decoded with all of its fields."""
        self.assertEqual(
            decodeRequest(VALID[0]),
            (
                1,
                OpCode.CREATE,
                CreateRequest("/a", b"data", (Acl(31, "world", "anyone"),), 3, False),
            ),
        )

    def test_connect(self) -> None:
        """A first frame, of today's clients and of ZooKeeper 3.3's."""
        data = bytes(wire.Connect(0, 7, 4_000, 9, b"p" * 16, True).serialize())
        expected = ConnectRequest(7, 4_000, 9, b"p" * 16, True)
        self.assertEqual(decodeConnect(data), expected)
        self.assertEqual(decodeConnect(data[:-1]), expected._replace(knowsReadOnly=False))

    def test_cutEverywhere(self) -> None:
        """A request that is cut anywhere is an error."""
        for data in VALID:
            for size in range(len(data)):
                self.assertRaises(WireError, decodeRequest, data[:size])

    def test_vector(self) -> None:
        """A count that the bytes cannot hold is refused before anything is read."""
        self.assertRaises(WireError, JuteReader(struct.pack(">i", 1 << 30)).readCount)
        self.assertRaises(WireError, JuteReader(struct.pack(">i", -2)).readCount)
        self.assertEqual(JuteReader(struct.pack(">i", -1)).readStrings(), [])

    def test_text(self) -> None:
        """Text that is not UTF-8 is refused."""
        self.assertRaises(WireError, JuteReader(b"\0\0\0\1\xff").readString)

    @given(st.binary(max_size=200))
    def test_anyBytes(self, data: bytes) -> None:
        """Any bytes are decoded, or are a L{WireError}."""
        for decode in (decodeRequest, decodeConnect, decodeTransaction):
            try:
                decode(data)
            except WireError:
                pass

    @given(st.sampled_from(VALID), st.data())
    def test_mutated(self, valid: bytes, data: st.DataObject) -> None:
        """So are requests with a few bytes changed."""
        changed = bytearray(valid)
        for _ in range(data.draw(st.integers(1, 4))):
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        try:
            decodeRequest(bytes(changed))
        except WireError:
            pass


class LiveTests(SynchronousTestCase):
    """Requests with a few bytes changed, at a server."""

    @given(st.sampled_from(VALID), st.data())
    def test_costsOnlyItsConnection(self, valid: bytes, data: st.DataObject) -> None:
        """
        Whatever a client sends costs its connection at most: another client is served, and what the
        server then has survives a restart.
        """
        bench = ServerBench()
        bench.start()
        client, other = bench.client(), bench.client()
        for _ in range(data.draw(st.integers(1, 3))):
            changed = bytearray(valid)
            for _ in range(data.draw(st.integers(0, 3))):
                changed[data.draw(st.integers(4, len(changed) - 1))] = data.draw(
                    st.integers(0, 255)
                )
            client.send(bytes(changed))
            bench.settle()
        client.connection.dataReceived(data.draw(st.binary(max_size=100)))
        bench.settle()
        self.assertEqual(bench.ask(other, create("/other")).error, 0)
        nodes, sessions = dict(bench.server.tree.nodes), dict(bench.server.tree.sessions)
        bench.kill()
        self.assertEqual(bench.server.tree.nodes, nodes)
        self.assertEqual(bench.server.tree.sessions, sessions)


class TransactionTests(SynchronousTestCase):
    """The log's encoding."""

    @given(_transactions)
    def test_roundTrip(self, transaction: object) -> None:
        """A transaction is decoded as it was encoded."""
        self.assertEqual(decodeTransaction(encodeTransaction(transaction)), transaction)  # type: ignore[arg-type]

    def test_laterFormat(self) -> None:
        """A transaction of a later version says so."""
        error = self.assertRaises(WireError, decodeTransaction, struct.pack(">i", 2))
        self.assertIn("format 2", str(error))

    def test_unknown(self) -> None:
        """An unknown type of change is an error, also within several."""
        for body in (struct.pack(">ii", 1, 99), struct.pack(">iiii", 1, 7, 1, 99)):
            self.assertRaises(WireError, decodeTransaction, body)
