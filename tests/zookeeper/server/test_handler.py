"""
Tests for L{pylogbroker.zookeeper.server.handler}, L{pylogbroker.zookeeper.server.changes},
L{pylogbroker.zookeeper.server.datatree} and L{pylogbroker.zookeeper.server.watches}: what a client
gets for each request, as ZooKeeper 3.9 gives it.
"""

from __future__ import annotations

import struct
from typing import Any

from kazoo.protocol import serialization as wire
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Id, make_acl
from kazoo.security import make_digest_acl_credential as digest

from pylogbroker.zookeeper.server import handler
from tests.zookeeper.server.serverbench import Peer, ServerBench, create
from tests.zookeeper.server.test_service import ServerCase

RUNTIME_INCONSISTENCY = -2
UNIMPLEMENTED = -6
BAD_ARGUMENTS = -8
NO_NODE = -101
NO_AUTH = -102
BAD_VERSION = -103
NO_CHILDREN_FOR_EPHEMERALS = -108
NODE_EXISTS = -110
NOT_EMPTY = -111
INVALID_ACL = -114
AUTH_FAILED = -115
NO_WATCHER = -121

CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4
EPHEMERAL, SEQUENCE, CONTAINER = 1, 2, 4


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">i", len(data)) + data


class HandlerCase(ServerCase):
    """A bench with a client."""

    bench: ServerBench

    def setUp(self) -> None:
        super().setUp()
        self.client = self.bench.client()

    def error(self, request: Any, opCode: int | None = None, client: Peer | None = None) -> int:
        return self.bench.ask(client or self.client, request, opCode).error

    def result(self, request: Any, opCode: int | None = None) -> Any:
        """What kazoo makes of the answer."""
        reply = self.bench.ask(self.client, request, opCode)
        self.assertEqual(reply.error, 0)
        return request.deserialize(reply.body, 0)

    def stat(self, path: str) -> ZnodeStat:
        return self.result(wire.Exists(path, None))

    def raw(self, opCode: int, body: bytes, client: Peer | None = None) -> Any:
        client = client or self.client
        client.raw(opCode, body)
        self.bench.settle()
        (reply,) = client.replies()
        return reply

    def authenticate(self, client: Peer, scheme: str, credentials: str) -> int:
        client.send(struct.pack(">iii", -4, 100, 0) + string(scheme) + string(credentials))
        self.bench.settle()
        (reply,) = client.replies()
        self.assertEqual(reply.xid, -4)
        return reply.error


class WriteTests(HandlerCase):
    """Changes, and why they are refused."""

    def test_stat(self) -> None:
        """Every number of a stat is ZooKeeper's."""
        bench = self.bench
        self.assertEqual(self.result(create("/a", b"12345")), "/a")
        zxid, timeMs = bench.server.tree.zxid, bench.nowMs()
        self.assertEqual(
            self.stat("/a"), ZnodeStat(zxid, zxid, timeMs, timeMs, 0, 0, 0, 0, 5, 0, zxid)
        )
        bench.clock.advance(0.5)
        stat = self.result(wire.SetData("/a", b"123", 0))
        self.assertEqual(
            stat, ZnodeStat(zxid, zxid + 1, timeMs, timeMs + 500, 1, 0, 0, 0, 3, 0, zxid)
        )
        self.result(create("/a/b"))
        self.result(create("/a/c"))
        self.result(wire.Delete("/a/b", -1))
        stat = self.result(wire.SetACL("/a", OPEN_ACL_UNSAFE, 0))
        self.assertEqual(
            stat, ZnodeStat(zxid, zxid + 1, timeMs, timeMs + 500, 1, 3, 1, 0, 3, 1, zxid + 4)
        )
        self.result(create("/e", b"", EPHEMERAL))
        self.assertEqual(self.stat("/e").ephemeralOwner, self.client.sessionId)

    def test_root(self) -> None:
        """The root is as in a new ZooKeeper."""
        self.assertEqual(self.stat("/"), ZnodeStat(0, 0, 0, 0, 0, -1, 0, 0, 0, 1, 0))
        self.assertEqual(self.result(wire.GetChildren("/", None)), ["zookeeper"])
        self.assertEqual(
            sorted(self.result(wire.GetChildren("/zookeeper", None))), ["config", "quota"]
        )
        self.assertEqual(self.error(create("/")), NODE_EXISTS)
        self.assertEqual(self.error(wire.Delete("/", -1)), BAD_ARGUMENTS)
        self.assertEqual(self.error(wire.Delete("/zookeeper", -1)), BAD_ARGUMENTS)
        self.assertEqual(self.error(wire.SetData("/zookeeper/config", b"", -1)), NO_AUTH)

    def test_paths(self) -> None:
        """What is no path is refused, by every change."""
        for path in (
            "a",
            "/a/",
            "/a//b",
            "/.",
            "/a/../b",
            "/a\0",
            "/a\x1f",
            "/\uf000",
            "/\U0001f600",
            "",
        ):
            for request in (
                create(path),
                wire.SetData(path, b"", -1),
                wire.SetACL(path, OPEN_ACL_UNSAFE, -1),
                wire.Sync(path),
            ):
                self.assertEqual(self.error(request), BAD_ARGUMENTS, (path, request))
        self.assertEqual(self.error(wire.Delete("a", -1)), BAD_ARGUMENTS)
        self.assertEqual(self.result(create("/\u00e4\u4e2d")), "/\u00e4\u4e2d")

    def test_refused(self) -> None:
        """Each reason has its code."""
        self.result(create("/a"))
        self.result(create("/a/b"))
        self.result(create("/e", b"", EPHEMERAL))
        for request, code in (
            (create("/x/y"), NO_NODE),
            (create("/a"), NODE_EXISTS),
            (create("/e/x"), NO_CHILDREN_FOR_EPHEMERALS),
            (wire.Delete("/x", -1), NO_NODE),
            (wire.Delete("/a", 3), BAD_VERSION),
            (wire.Delete("/a", 0), NOT_EMPTY),
            (wire.SetData("/x", b"", -1), NO_NODE),
            (wire.SetData("/a", b"", 1), BAD_VERSION),
            (wire.SetACL("/x", OPEN_ACL_UNSAFE, -1), NO_NODE),
            (wire.SetACL("/a", OPEN_ACL_UNSAFE, 5), BAD_VERSION),
            (create("/t", b"", 5), UNIMPLEMENTED),
            (create("/t", b"", 9), BAD_ARGUMENTS),
        ):
            self.assertEqual(self.error(request), code, request)

    def test_sequence(self) -> None:
        """The number is the count of children that ever were, also in the root and without name."""
        self.assertEqual(self.result(create("/s", b"", SEQUENCE)), "/s0000000000")
        self.result(create("/p"))
        self.result(create("/p/plain"))
        self.result(wire.Delete("/p/plain", -1))
        self.assertEqual(self.result(create("/p/", b"", SEQUENCE)), "/p/0000000001")
        self.assertEqual(self.result(create("/p/x-", b"", SEQUENCE | EPHEMERAL)), "/p/x-0000000002")
        self.assertEqual(self.stat("/p/x-0000000002").ephemeralOwner, self.client.sessionId)
        self.assertEqual(self.result(create("/", b"", SEQUENCE)), "/0000000002")

    def test_create2(self) -> None:
        """create2 answers with the stat, too."""
        path, stat = self.result(wire.Create2("/a", b"data", OPEN_ACL_UNSAFE, 0))
        self.assertEqual((path, stat), ("/a", self.stat("/a")))

    def test_container(self) -> None:
        """A container's owner is the smallest number."""
        self.result(wire.Create2("/c", b"", OPEN_ACL_UNSAFE, CONTAINER), 19)
        self.assertEqual(self.stat("/c").ephemeralOwner, -(1 << 63))
        self.result(create("/c/child"))

    def test_nullData(self) -> None:
        """Null data is not empty data."""
        self.result(create("/null", None))
        self.assertEqual(self.result(wire.GetData("/null", None))[0], None)
        self.bench.kill()
        self.assertIs(self.bench.server.tree.nodes["/null"].data, None)

    def test_check(self) -> None:
        """A check alone changes nothing."""
        self.result(create("/a"))
        zxid = self.bench.server.tree.zxid
        self.assertEqual(self.error(wire.CheckVersion("/a", 0)), 0)
        self.assertEqual(self.error(wire.CheckVersion("/a", 2)), BAD_VERSION)
        self.assertEqual(self.error(wire.CheckVersion("/x", 0)), NO_NODE)
        self.assertEqual(self.bench.server.tree.zxid, zxid)


class MultiTests(HandlerCase):
    """Several operations together."""

    def multi(self, *operations: Any, opCode: int | None = None) -> list[Any]:
        return self.result(wire.Transaction(operations), opCode)

    def codes(self, *operations: Any) -> list[int]:
        return [each.code for each in self.multi(*operations)]

    def test_all(self) -> None:
        """All operations see those before, share a transaction, and each has its result."""
        self.result(create("/a"))
        zxid = self.bench.server.tree.zxid
        created, numbered, checked, stat, deleted = self.multi(
            create("/a/b", b"1"),
            create("/a/c", b"", SEQUENCE),
            wire.CheckVersion("/a/b", 0),
            wire.SetData("/a/b", b"22", 0),
            wire.Delete("/a/b", 1),
        )
        self.assertEqual(self.bench.server.tree.zxid, zxid + 1)
        self.assertEqual((created, checked, deleted), ("/a/b", True, True))
        self.assertEqual((numbered, self.stat(numbered).czxid), ("/a/c0000000001", zxid + 1))
        self.assertEqual((stat.version, stat.dataLength), (1, 2))
        self.assertEqual(self.result(wire.GetChildren("/a", None)), ["c0000000001"])
        before = self.stat("/a")
        self.bench.kill()
        self.assertEqual(self.bench.server.tree.stat("/a")[:11], tuple(before))

    def test_create2(self) -> None:
        """A node that is created with its stat, which kazoo does not read."""
        request = wire.Transaction([wire.Create2("/a", b"", OPEN_ACL_UNSAFE, 0)])
        body = self.bench.ask(self.client, request).body
        head = struct.Struct(">ibi")
        stat = self.bench.server.tree.stat("/a").encode()
        self.assertEqual(body, head.pack(15, 0, 0) + string("/a") + stat + head.pack(-1, 1, -1))

    def test_none(self) -> None:
        """
        One that is refused undoes all: those before it say 0, it says why, those behind it that
        they were not tried. No watch fires, and the numbers of nodes are as before.
        """
        self.result(create("/a", b"old"))
        self.result(wire.GetData("/a", True))
        before, size = self.stat("/a"), self.bench.server.tree.size
        self.assertEqual(
            self.codes(
                wire.SetData("/a", b"new", -1),
                create("/a/b"),
                create("/a/e", b"", EPHEMERAL),
                wire.Delete("/x", -1),
                create("/c"),
            ),
            [0, 0, 0, NO_NODE, RUNTIME_INCONSISTENCY],
        )
        self.assertEqual((self.stat("/a"), self.bench.server.tree.size), (before, size))
        self.assertEqual(self.result(wire.GetChildren("/a", None)), [])
        self.assertEqual(self.bench.server.tree.ephemeralCount(), 0)

    def test_checksOnly(self) -> None:
        """A transaction that only checks is not logged."""
        zxid = self.bench.server.tree.zxid
        self.assertEqual(self.multi(wire.CheckVersion("/", 0)), [True])
        self.assertEqual(self.multi(), [])
        self.assertEqual(self.bench.server.tree.zxid, zxid)

    def test_watches(self) -> None:
        """Watches hear of each change, in order, with one transaction."""
        self.result(create("/a"))
        other = self.bench.client()
        self.bench.ask(other, wire.Exists("/b", True))
        self.bench.ask(other, wire.GetData("/a", True))
        self.multi(wire.SetData("/a", b"", -1), create("/b"))
        events = [struct.unpack_from(">i", each.body)[0] for each in other.replies()]
        self.assertEqual(events, [CHANGED, CREATED])

    def test_tooLarge(self) -> None:
        """What is too large for the log is refused whole."""
        self.patch(handler, "TRANSACTION_SIZE_MAX", 1_000)
        codes = self.codes(create("/a", bytes(600)), create("/b", bytes(600)))
        self.assertEqual(codes, [BAD_ARGUMENTS, RUNTIME_INCONSISTENCY])
        self.assertEqual(self.result(wire.GetChildren("/", None)), ["zookeeper"])

    def test_container(self) -> None:
        """The result of a new container has the type that ZooKeeper's clients know."""
        operation = bytes(wire.Create("/a", b"", OPEN_ACL_UNSAFE, 4).serialize())
        head = struct.Struct(">ibi")
        body = self.raw(14, head.pack(19, 0, -1) + operation + head.pack(-1, 1, -1)).body
        stat = self.bench.server.tree.stat("/a").encode()
        self.assertEqual(body, head.pack(15, 0, 0) + string("/a") + stat + head.pack(-1, 1, -1))

    def test_timeToLive(self) -> None:
        """A node with a time to live is refused like alone, and the connection goes on."""
        operation = bytes(wire.Create("/a", b"", OPEN_ACL_UNSAFE, 5).serialize()) + bytes(8)
        head = struct.Struct(">ibi")
        body = self.raw(14, head.pack(21, 0, -1) + operation + head.pack(-1, 1, -1)).body
        self.assertEqual(struct.unpack_from(">ibi", body), (-1, 0, UNIMPLEMENTED))
        self.assertEqual(self.raw(21, operation).error, UNIMPLEMENTED)
        self.assertFalse(self.client.isClosed)

    def test_foreignOperation(self) -> None:
        """An operation that is no change costs the connection."""
        self.client.raw(14, struct.pack(">ibi", 4, 0, -1) + string("/a") + b"\0")
        self.assertTrue(self.client.transport.isAborted)

    def test_bug(self) -> None:
        """An unexpected error leaves no half of it."""
        self.patch(handler, "encodeTransaction", lambda transaction: 1 / 0)
        request = wire.Transaction([create("/a")])
        self.assertRaises(ZeroDivisionError, self.client.request, request)
        self.assertNotIn("/a", self.bench.server.tree.nodes)

    def test_readsTooMuch(self) -> None:
        """What many reads of one large node give has a limit."""
        self.patch(handler, "RESULTS_SIZE_MAX", 10_000)
        self.result(create("/a", bytes(4_500)))
        head = struct.Struct(">ibi")
        one = head.pack(4, 0, -1) + string("/a") + b"\0"
        for count, code in ((2, 0), (3, BAD_ARGUMENTS)):
            self.assertEqual(self.raw(22, count * one + head.pack(-1, 1, -1)).error, code)

    def test_reads(self) -> None:
        """Several reads in one request: each has its result or its error."""
        self.result(create("/a", b"data"))
        head = struct.Struct(">ibi")
        body = b"".join(
            (
                head.pack(4, 0, -1) + string("/a") + b"\0",
                head.pack(4, 0, -1) + string("/x") + b"\0",
                head.pack(8, 0, -1) + string("/") + b"\0",
                head.pack(-1, 1, -1),
            )
        )
        reply = self.raw(22, body)
        data = struct.pack(">i", 4) + b"data" + self.bench.server.tree.stat("/a").encode()
        children = struct.pack(">i", 2) + string("zookeeper") + string("a")
        expected = (
            head.pack(4, 0, 0)
            + data
            + head.pack(-1, 0, NO_NODE)
            + struct.pack(">i", NO_NODE)
            + head.pack(8, 0, 0)
            + children
            + head.pack(-1, 1, -1)
        )
        self.assertEqual(reply.body, expected)


class ReadTests(HandlerCase):
    """Reads."""

    def test_children(self) -> None:
        """Both requests for children."""
        self.result(create("/a"))
        self.result(create("/a/b"))
        names, stat = self.result(wire.GetChildren2("/a", None))
        self.assertEqual((names, stat), (["b"], self.stat("/a")))
        self.assertEqual(self.error(wire.GetChildren("/x", None)), NO_NODE)
        self.assertEqual(self.error(wire.Exists("x", None)), BAD_ARGUMENTS)

    def test_sync(self) -> None:
        """Sync answers with the path."""
        self.assertEqual(self.result(wire.Sync("/a")), "/a")

    def test_ephemerals(self) -> None:
        """A session's own nodes, below a path."""
        self.result(create("/a"))
        for path in ("/a/e", "/ab", "/b"):
            self.result(create(path, b"", EPHEMERAL))
        self.assertEqual(
            self.raw(103, string("/")).body,
            struct.pack(">i", 3) + string("/a/e") + string("/ab") + string("/b"),
        )
        self.assertEqual(self.raw(103, string("/a")).body, struct.pack(">i", 1) + string("/a/e"))

    def test_descendants(self) -> None:
        """The number of all nodes below one."""
        self.result(create("/a"))
        self.result(create("/a/b"))
        self.result(create("/a/b/c"))
        self.assertEqual(self.raw(104, string("/a")).body, struct.pack(">i", 2))
        self.assertEqual(self.raw(104, string("/")).body, struct.pack(">i", 6))
        self.assertEqual(self.raw(104, string("/x")).error, NO_NODE)
        self.result(wire.Delete("/a/b/c", -1))
        self.assertEqual(self.raw(104, string("/a")).body, struct.pack(">i", 1))
        self.bench.kill()
        tree = self.bench.server.tree
        self.assertEqual([tree.descendantCount(each) for each in ("/", "/a", "/a/b")], [5, 1, 0])


class AclTests(HandlerCase):
    """Access control lists and credentials."""

    def setUp(self) -> None:
        super().setUp()
        self.owner = self.bench.client()
        self.assertEqual(self.authenticate(self.owner, "digest", "user:secret"), 0)

    def test_digest(self) -> None:
        """Each permission is asked for what needs it; an owner has all, another client none."""
        for request in (create("/a", b"", 0, CREATOR_ALL_ACL), create("/a/b")):
            self.assertEqual(self.error(request, client=self.owner), 0)
        forbidden = (
            wire.GetData("/a", None),
            wire.GetChildren("/a", None),
            wire.SetData("/a", b"", -1),
            wire.SetACL("/a", OPEN_ACL_UNSAFE, -1),
            create("/a/c"),
            wire.Delete("/a/b", -1),
            wire.GetACL("/a"),
            wire.CheckVersion("/a", -1),
        )
        for request in forbidden:
            self.assertEqual(self.error(request), NO_AUTH, request)
        self.assertEqual(self.raw(104, string("/a")).error, NO_AUTH)
        self.assertEqual(self.error(wire.Exists("/a", None)), 0)
        self.assertEqual(self.authenticate(self.client, "digest", "user:wrong"), 0)
        self.assertEqual(self.error(forbidden[0]), NO_AUTH)
        self.assertEqual(self.authenticate(self.client, "digest", "user:secret"), 0)
        for request in forbidden:
            self.assertEqual(self.error(request), 0, request)
        self.assertEqual(self.error(forbidden[0]), 0)

    def test_getAcl(self) -> None:
        """A client that may read a list, but not change it, does not see digests of passwords."""
        acls = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
        self.error(create("/a", b"", 0, acls), client=self.owner)
        mine = ACL(31, Id("digest", digest("user", "secret")))
        reply = self.bench.ask(self.owner, wire.GetACL("/a"))
        self.assertEqual(wire.GetACL.deserialize(reply.body, 0)[0], [mine, *READ_ACL_UNSAFE])
        found, stat = self.result(wire.GetACL("/a"))
        self.assertEqual(found, [ACL(31, Id("digest", "user:x")), *READ_ACL_UNSAFE])
        self.assertEqual(stat, self.stat("/a"))
        self.bench.kill()
        kept = self.bench.server.tree.nodes["/a"].acls
        self.assertEqual(kept[0], (31, "digest", digest("user", "secret")))

    def test_address(self) -> None:
        """A client has its address without credentials; a list may name a network."""
        address = self.client.connection.address
        for path, identity, code in (
            ("/a", address, 0),
            ("/b", "192.168.0.0/16", 0),
            ("/c", "10.0.0.0/8", NO_AUTH),
        ):
            self.result(create(path, b"", 0, [make_acl("ip", identity, all=True)]))
            self.assertEqual(self.error(wire.SetData(path, b"", -1)), code, path)
        self.assertEqual(self.authenticate(self.client, "ip", ""), 0)

    def test_invalid(self) -> None:
        """A list that is none is refused."""
        for scheme, identity in (
            ("world", "somebody"),
            ("digest", "nobody"),
            ("ip", "nowhere"),
            ("auth", ""),
            ("sasl", "x"),
        ):
            acls = [make_acl(scheme, identity, all=True)]
            self.assertEqual(self.error(create("/a", b"", 0, acls)), INVALID_ACL, scheme)
        self.assertEqual(self.error(wire.SetACL("/zookeeper", [], -1)), INVALID_ACL)

    def test_unknownScheme(self) -> None:
        """Credentials of an unknown scheme are refused, and end the connection, as ZooKeeper's."""
        self.assertEqual(self.authenticate(self.client, "sasl", "x"), AUTH_FAILED)
        self.assertTrue(self.client.isClosed)
        self.assertLogged("is closed: {error}")

    def test_limits(self) -> None:
        """Credentials and lists are short; a list counts for the size of the tree."""
        self.assertEqual(self.authenticate(self.owner, "digest", "u:" + 4_095 * "p"), AUTH_FAILED)
        many = [make_acl("ip", f"10.0.0.{i}", read=True) for i in range(101)]
        long = [make_acl("digest", "u:" + 9_999 * "x", read=True)]
        self.result(create("/b"))
        for acls in (many, long):
            self.assertEqual(self.error(create("/a", b"", 0, acls)), INVALID_ACL)
            self.assertEqual(self.error(wire.SetACL("/b", acls, -1)), INVALID_ACL)
        tree = self.bench.server.tree
        size = tree.size
        self.error(wire.SetACL("/b", [*many[2:], *OPEN_ACL_UNSAFE], -1))
        self.assertGreater(tree.size, size + 20_000)
        self.error(wire.SetACL("/b", OPEN_ACL_UNSAFE, -1))
        self.assertEqual(tree.size, size)

    def test_numbered(self) -> None:
        """The answer has the number of the request: the Go client's are not -4."""
        for scheme, code in (("digest", 0), ("sasl", AUTH_FAILED)):
            number = self.client.raw(100, bytes(4) + string(scheme) + string("u:p"))
            self.bench.settle()
            (reply,) = self.client.replies()
            self.assertEqual((reply.xid, reply.error), (number, code))

    def test_tooMany(self) -> None:
        """A client has a limited number of identities."""
        for i in range(99):
            self.assertEqual(self.authenticate(self.client, "digest", f"u{i}:p"), 0)
        self.assertEqual(self.authenticate(self.client, "digest", "u0:p"), 0)
        self.assertEqual(self.authenticate(self.client, "digest", "one:more"), AUTH_FAILED)

    def test_whoAmI(self) -> None:
        """The identities of a client, without passwords."""
        reply = self.raw(107, b"", self.owner)
        address = self.owner.connection.address
        self.assertEqual(
            reply.body,
            struct.pack(">i", 2)
            + string("ip")
            + string(address)
            + string("digest")
            + string("user"),
        )


class WatchTests(HandlerCase):
    """Watches."""

    def setUp(self) -> None:
        super().setUp()
        self.other = self.bench.client()

    def change(self, *requests: Any) -> list[tuple[int, str]]:
        """The events that a client hears of when another makes changes."""
        for request in requests:
            self.assertEqual(self.bench.ask(self.other, request).error, 0)
        return self.events()

    def events(self) -> list[tuple[int, str]]:
        found = []
        for each in self.client.replies():
            self.assertEqual((each.xid, each.zxid, each.error), (-1, -1, 0))
            kind, state = struct.unpack_from(">ii", each.body)
            self.assertEqual(state, 3)
            found.append((kind, wire.read_string(each.body, 8)[0]))
        return found

    def addWatch(self, path: str, mode: int) -> int:
        error: int = self.raw(106, string(path) + struct.pack(">i", mode)).error
        return error

    def test_data(self) -> None:
        """A watch of data fires once, for a change or the end."""
        self.result(create("/a"))
        self.result(wire.GetData("/a", True))
        self.result(wire.GetData("/a", True))
        set_ = wire.SetData("/a", b"", -1)
        self.assertEqual(self.change(set_, set_), [(CHANGED, "/a")])
        self.result(wire.GetData("/a", True))
        self.assertEqual(self.change(wire.Delete("/a", -1)), [(DELETED, "/a")])
        self.assertEqual(self.error(wire.GetData("/a", True)), NO_NODE)
        self.assertEqual(self.change(create("/a")), [])

    def test_existence(self) -> None:
        """A watch of a missing node fires when it comes."""
        self.assertEqual(self.error(wire.Exists("/a", True)), NO_NODE)
        self.assertEqual(self.change(create("/a")), [(CREATED, "/a")])

    def test_children(self) -> None:
        """A watch of children fires when one comes, or goes, or the node itself goes, once."""
        self.result(create("/a"))
        for change in (create("/a/b"), wire.Delete("/a/b", -1)):
            self.result(wire.GetChildren("/a", True))
            self.assertEqual(self.change(change), [(CHILD, "/a")])
        self.result(wire.GetChildren2("/a", True))
        self.result(wire.Exists("/a", True))
        self.assertEqual(self.change(wire.Delete("/a", -1)), [(DELETED, "/a")])

    def test_sessionEnds(self) -> None:
        """The nodes of a session that ends are deleted for watches, too."""
        self.bench.ask(self.other, create("/e", b"", EPHEMERAL))
        self.result(wire.Exists("/e", True))
        self.result(wire.GetChildren("/", True))
        self.other.raw(-11)
        self.bench.settle()
        self.assertEqual(self.events(), [(DELETED, "/e"), (CHILD, "/")])

    def test_persistent(self) -> None:
        """A persistent watch of a node hears of it and of its children, again and again."""
        self.assertEqual(self.addWatch("/a", 0), 0)
        set_ = wire.SetData("/a", b"", -1)
        self.assertEqual(
            self.change(create("/a"), set_, set_, create("/a/b"), wire.Delete("/a/b", -1)),
            [(CREATED, "/a"), (CHANGED, "/a"), (CHANGED, "/a"), (CHILD, "/a"), (CHILD, "/a")],
        )
        self.assertEqual(self.change(wire.Delete("/a", -1)), [(DELETED, "/a")])

    def test_recursive(self) -> None:
        """A recursive watch hears of all nodes below, and of no change of children."""
        self.assertEqual(self.addWatch("/a", 1), 0)
        changes = create("/a"), create("/a/b"), wire.SetData("/a/b", b"", -1), create("/c")
        self.assertEqual(
            self.change(*changes), [(CREATED, "/a"), (CREATED, "/a/b"), (CHANGED, "/a/b")]
        )
        self.assertEqual(self.addWatch("/", 1), 0)
        self.assertEqual(self.change(create("/d")), [(CREATED, "/d")])
        self.assertEqual(self.addWatch("/", 2), BAD_ARGUMENTS)

    def test_remove(self) -> None:
        """A client can remove its watches, of one kind or all, and ask for them."""
        self.result(create("/a"))
        self.result(wire.GetData("/a", True))
        self.result(wire.GetChildren("/a", True))

        def ask(opCode: int, kind: int, path: str = "/a") -> int:
            error: int = self.raw(opCode, string(path) + struct.pack(">i", kind)).error
            return error

        self.assertEqual([ask(17, kind) for kind in (1, 2, 3, 4)], [0, 0, 0, BAD_ARGUMENTS])
        self.assertEqual([ask(18, 2), ask(18, 2)], [0, NO_WATCHER])
        self.assertEqual([ask(17, 3), ask(18, 3), ask(18, 3)], [0, 0, NO_WATCHER])
        self.assertEqual(self.change(wire.SetData("/a", b"", -1), create("/a/b")), [])

    def setWatches(
        self, zxid: int, data: Any = (), existence: Any = (), children: Any = (), more: bytes = b""
    ) -> None:
        body = struct.pack(">q", zxid)
        for paths in (data, existence, children):
            body += struct.pack(">i", len(paths)) + b"".join(map(string, paths))
        number = 105 if more else 101
        self.client.send(struct.pack(">ii", -8, number) + body + more)
        self.bench.settle()

    def test_setWatches(self) -> None:
        """
        A client that comes back sets its watches: those of what has changed meanwhile fire at once,
        the others later.
        """
        for path in ("/data", "/set", "/gone", "/parent", "/with"):
            self.result(create(path))
        zxid = self.bench.server.tree.zxid
        for request in (
            wire.SetData("/set", b"", -1),
            wire.Delete("/gone", -1),
            create("/with/child"),
            create("/new"),
        ):
            self.bench.ask(self.other, request)
        self.setWatches(
            zxid, ("/data", "/set", "/gone"), ("/new", "/missing"), ("/parent", "/with", "/gone")
        )
        *events, reply = self.client.replies()
        self.assertEqual((reply.xid, reply.error), (-8, 0))
        self.assertEqual(
            [(*struct.unpack_from(">i", each.body), each.body[12:]) for each in events],
            [
                (CHANGED, b"/set"),
                (DELETED, b"/gone"),
                (CREATED, b"/new"),
                (CHILD, b"/with"),
                (DELETED, b"/gone"),
            ],
        )
        self.assertEqual(
            self.change(wire.SetData("/data", b"", -1), create("/missing"), create("/parent/x")),
            [(CHANGED, "/data"), (CREATED, "/missing"), (CHILD, "/parent")],
        )

    def test_setWatches2(self) -> None:
        """Persistent watches can be set, too."""
        more = struct.pack(">i", 1) + string("/node") + struct.pack(">i", 1) + string("/tree")
        self.setWatches(0, more=more)
        self.client.replies()
        changes = create("/node"), create("/tree"), create("/node/x"), create("/tree/x")
        self.assertEqual(
            self.change(*changes),
            [(CREATED, "/node"), (CREATED, "/tree"), (CHILD, "/node"), (CREATED, "/tree/x")],
        )
