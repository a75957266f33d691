"""Tests for L{pylogbroker.broker.kafka.fetchsessions}."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.broker.kafka.fetchsessions import (
    EPOCH_MAX,
    FetchContext,
    FetchOutcome,
    FetchResult,
    FetchSessionCache,
    ReplicaReader,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)

QUIET = FetchResult(0, 0, 5, 5, 0)
FOUND = FetchResult(100, 0, 5, 5, 0)
FAILED = FetchResult(errorCode=ErrorCode.OFFSET_OUT_OF_RANGE)
NO_ID = bytes(16)
IDS = {"t": b"t" * 16, "u": b"u" * 16}

Place = tuple[str, int, int]


def requestOf(
    *wanted: Place,
    sessionId: int = 0,
    epoch: int = 0,
    forgotten: Sequence[tuple[str, int]] = (),
    version: int = 12,
) -> FetchRequest:
    """@param wanted: (topic, number, offset)."""

    def name(topic: str) -> tuple[str, bytes]:
        return (topic, NO_ID) if version < 13 else ("", IDS[topic])

    return FetchRequest(
        -1, 500, 1, 1 << 20, 0, sessionId, epoch,
        [
            FetchTopic(*name(topic), [FetchPartition(index, -1, offset, -1, -1, 1 << 20)])
            for topic, index, offset in wanted
        ],
        [ForgottenTopic(*name(topic), [index]) for topic, index in forgotten],
        "",
    )  # fmt: skip


class CacheCase(SynchronousTestCase):
    """What the cases below share."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.names = {topicId: name for name, topicId in IDS.items()}
        self.cache = self.newCache(2)

    def newCache(self, slotCount: int, **more: Any) -> FetchSessionCache:
        return FetchSessionCache(slotCount, self.clock.seconds, Random(1), **more)

    def begin(
        self,
        *wanted: Place,
        version: int = 12,
        replica: ReplicaReader | None = None,
        **more: Any,
    ) -> FetchContext:
        request = requestOf(*wanted, version=version, **more)
        return self.cache.begin(request, version, self.names.get, replica)

    def fetch(
        self, *wanted: Place, results: Sequence[FetchResult] | None = None, **more: Any
    ) -> FetchOutcome:
        """@param results: all are C{QUIET} without."""
        context = self.begin(*wanted, **more)
        return context.finish(results or [QUIET] * len(context.partitions))

    def assertRefused(self, code: ErrorCode, *wanted: Place, **more: Any) -> None:
        error = self.assertRaises(KafkaError, self.begin, *wanted, **more)
        self.assertEqual(error.code, code)

    def read(self, context: FetchContext) -> list[tuple[str | bytes, int, int]]:
        """What a context wants to be read: topics, numbers, offsets."""
        return [(*each.key, each.wanted.fetchOffset) for each in context.partitions]


class LifeTests(CacheCase):
    """How sessions begin, go on, and end."""

    def test_ids(self) -> None:
        """The epoch 0 makes a session with a positive id of four bytes, each another."""
        self.cache = self.newCache(100)
        found = {self.fetch(("t", 0, 0)).sessionId for _ in range(100)}
        self.assertEqual(len(found), 100)
        self.assertTrue(all(0 < each < 1 << 31 for each in found))

    def test_takenId(self) -> None:
        """An id that is taken is not given again."""

        class Repeating(Random):
            drawn = iter((7, 7, 8))

            def randint(self, a: int, b: int) -> int:
                return next(self.drawn)

        self.cache = FetchSessionCache(2, self.clock.seconds, Repeating())
        self.assertEqual([self.fetch(("t", 0, 0)).sessionId for _ in range(2)], [7, 8])

    def test_epochs(self) -> None:
        """The epochs of the next requests are 1, 2, and so on."""
        sessionId = self.fetch(("t", 0, 0)).sessionId
        for epoch in (1, 2, 3):
            self.assertEqual(
                self.fetch(sessionId=sessionId, epoch=epoch), FetchOutcome(sessionId, 0, [])
            )
        self.assertRefused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, sessionId=sessionId, epoch=3)
        self.assertEqual(self.fetch(sessionId=sessionId, epoch=4).errorCode, 0)

    def test_epochsWrap(self) -> None:
        """After the largest epoch comes 1."""
        sessionId = self.fetch(("t", 0, 0)).sessionId
        self.cache._sessions[sessionId].epoch = EPOCH_MAX
        for epoch in (EPOCH_MAX, 1, 2):
            self.assertEqual(self.fetch(sessionId=sessionId, epoch=epoch).errorCode, 0)

    def test_notFound(self) -> None:
        """A session that is not there, 0 included, is refused."""
        for sessionId in (0, 9, -1):
            self.assertRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, sessionId=sessionId, epoch=1)

    def test_topicIds(self) -> None:
        """A session keeps to names, or to ids."""
        for first, second in ((12, 13), (13, 12)):
            sessionId = self.fetch(("t", 0, 0), version=first).sessionId
            self.assertRefused(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                sessionId=sessionId,
                epoch=1,
                version=second,
            )
            found = self.fetch(sessionId=sessionId, epoch=1, version=first)
            self.assertEqual(found.errorCode, 0)

    def test_final(self) -> None:
        """The epoch -1 ends a session; what it names is read without one."""
        sessionId = self.fetch(("t", 0, 0)).sessionId
        found = self.fetch(("t", 0, 3), sessionId=sessionId, epoch=-1)
        self.assertEqual((found, len(self.cache)), ((0, 0, range(1)), 0))
        self.assertEqual(self.fetch(("t", 0, 0), epoch=-1).sessionId, 0)

    def test_again(self) -> None:
        """The epoch 0 of a session ends it, for a new one."""
        first = self.fetch(("t", 0, 0)).sessionId
        second = self.fetch(("u", 0, 0), sessionId=first, epoch=0).sessionId
        self.assertNotIn(second, (0, first))
        self.assertEqual((len(self.cache), self.cache.partitionCount), (1, 1))

    def test_overtaken(self) -> None:
        """A context whose session has gone on has an error, and the session notes nothing."""
        sessionId = self.fetch(("t", 0, 0), results=[QUIET]).sessionId
        first = self.begin(sessionId=sessionId, epoch=1)
        second = self.begin(sessionId=sessionId, epoch=2)
        self.assertEqual(
            first.finish([QUIET._replace(highWatermark=9)]),
            (sessionId, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ()),
        )
        self.assertEqual(second.finish([QUIET._replace(highWatermark=9)]).sent, [0])

    def test_evictedMeanwhile(self) -> None:
        """A request whose session ends while it waits is answered; the next one is refused."""
        sessionId = self.fetch(("t", 0, 0)).sessionId
        context = self.begin(sessionId=sessionId, epoch=1)
        self.fetch(sessionId=sessionId, epoch=-1)
        self.assertEqual(context.finish([FOUND]), (sessionId, 0, [0]))
        self.assertRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, sessionId=sessionId, epoch=2)


class PartitionTests(CacheCase):
    """Which partitions are read, and which are sent."""

    def begun(self, *wanted: Place, **more: Any) -> int:
        return self.fetch(*wanted, **more).sessionId

    def test_read(self) -> None:
        """A session reads what it has, as the client has asked for it last; new ones at the end."""
        sessionId = self.begun(("t", 0, 1), ("u", 0, 2))
        context = self.begin(("u", 0, 3), ("t", 1, 4), sessionId=sessionId, epoch=1)
        self.assertEqual(self.read(context), [("t", 0, 1), ("u", 0, 3), ("t", 1, 4)])
        self.assertEqual([each.name for each in context.partitions], ["t", "u", "t"])
        self.assertEqual(context.finish([QUIET] * 3).sent, [2])
        self.assertEqual(self.cache.partitionCount, 3)

    def test_twice(self) -> None:
        """Of a partition that is named twice, the last counts."""
        for epoch in (0, -1):
            context = self.begin(("t", 0, 1), ("t", 1, 2), ("t", 0, 3), epoch=epoch)
            self.assertEqual(self.read(context), [("t", 0, 3), ("t", 1, 2)])

    def test_forgotten(self) -> None:
        """Partitions leave a session, which ends with the last; unknown ones are no matter."""
        for version, (t, u) in ((12, ("t", "u")), (13, (IDS["t"], IDS["u"]))):
            sessionId = self.begun(("t", 0, 1), ("u", 0, 2), version=version)
            at: dict[str, Any] = {"sessionId": sessionId, "version": version}
            context = self.begin(epoch=1, forgotten=[("t", 0), ("t", 9)], **at)
            self.assertEqual((self.read(context), self.cache.partitionCount), ([(u, 0, 2)], 1))
            self.assertEqual(context.finish([QUIET]), (sessionId, 0, []))
            context = self.begin(("t", 1, 5), epoch=2, forgotten=[("u", 0), ("t", 1)], **at)
            self.assertEqual(self.read(context), [(t, 1, 5)])
            self.assertEqual(context.finish([QUIET]), (0, 0, range(1)))
            self.assertEqual((len(self.cache), self.cache.partitionCount), (0, 0))

    def test_news(self) -> None:
        """Records, an error or another mark are sent; the same marks again are not."""
        sessionId = self.begun(("t", 0, 0))
        for epoch, (result, isSent) in enumerate(
            (
                (QUIET, False),
                (QUIET._replace(highWatermark=6), True),
                (QUIET._replace(highWatermark=6), False),
                (QUIET._replace(highWatermark=6, lastStableOffset=6), True),
                (FetchResult(0, 0, 6, 6, 2), True),
                (FetchResult(7, 0, 6, 6, 2), True),
                (FetchResult(7, 0, 6, 6, 2), True),
                (FetchResult(0, 0, 6, 6, 2), False),
                (FAILED, True),
                (FAILED, True),
                (FetchResult(0, 0, 6, 6, 2), True),
                (FetchResult(0, 0, 6, 6, 2), False),
            ),
            1,
        ):
            found = self.fetch(sessionId=sessionId, epoch=epoch, results=[result])
            self.assertEqual(found, (sessionId, 0, [0] if isSent else []), epoch)

    def test_firstError(self) -> None:
        """A partition that failed in the first response is sent when it is well."""
        sessionId = self.begun(("t", 0, 0), results=[FAILED])
        for epoch, sent in ((1, [0]), (2, [])):
            self.assertEqual(self.fetch(sessionId=sessionId, epoch=epoch).sent, sent)

    def test_order(self) -> None:
        """Partitions with records are read last the next time, in their order."""
        sessionId = self.begun(*(("t", index, 0) for index in range(4)))
        context = self.begin(sessionId=sessionId, epoch=1)
        moved = QUIET._replace(highWatermark=6)
        self.assertEqual(context.finish([FOUND, moved, FOUND, QUIET]).sent, [0, 1, 2])
        context = self.begin(sessionId=sessionId, epoch=2)
        self.assertEqual([each.key[1] for each in context.partitions], [1, 3, 0, 2])

    def test_names(self) -> None:
        """
        With ids, a name that is known stays, also when the topic is gone; one that is not known is
        looked for again.
        """
        del self.names[IDS["u"]]
        sessionId = self.begun(("t", 0, 0), ("u", 0, 0), version=13)
        self.names = {IDS["u"]: "u"}
        for epoch, expected in ((1, ["t", "u"]), (2, ["t", "u"])):
            context = self.begin(sessionId=sessionId, epoch=epoch, version=13)
            self.assertEqual([each.name for each in context.partitions], expected)
            self.names = {}

    def test_unknownName(self) -> None:
        """A topic with an unknown id has no name."""
        self.names = {}
        for epoch in (0, -1):
            (found,) = self.begin(("t", 0, 0), epoch=epoch, version=13).partitions
            self.assertEqual((found.key, found.name), ((IDS["t"], 0), None))


class RoomTests(CacheCase):
    """Which sessions a full cache gives up."""

    def begun(self, size: int) -> int:
        return self.fetch(*(("t", index, 0) for index in range(size))).sessionId

    def isThere(self, sessionId: int, epoch: int = 1) -> bool:
        """Uses it."""
        try:
            self.begin(sessionId=sessionId, epoch=epoch)
        except KafkaError as error:
            self.assertEqual(error.code, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return False
        return True

    def test_full(self) -> None:
        """While all sessions are young and in use, there are no more."""
        self.begun(1)
        self.begun(1)
        self.clock.advance(120)
        self.assertEqual(self.begun(9), 0)

    def test_none(self) -> None:
        """A cache without slots has none."""
        self.cache = self.newCache(0)
        self.assertEqual(self.begun(1), 0)

    def test_unused(self) -> None:
        """The one that is unused for the longest time goes, after two minutes."""
        first, second = self.begun(5), self.begun(1)
        self.clock.advance(1)
        self.assertTrue(self.isThere(first))
        self.clock.advance(119.5)
        self.assertGreater(self.begun(1), 0)
        self.assertFalse(self.isThere(second))
        self.assertTrue(self.isThere(first, 2))

    def test_smaller(self) -> None:
        """Among old ones that are in use, the smallest goes, for one with more partitions."""
        self.cache = self.newCache(3)
        ids = {size: self.begun(size) for size in (3, 2)}
        self.clock.advance(100)
        ids[1] = self.begun(1)
        self.clock.advance(21)
        for sessionId in ids.values():
            self.assertTrue(self.isThere(sessionId))
        self.assertEqual(self.begun(2), 0)
        self.assertGreater(self.begun(3), 0)
        self.assertFalse(self.isThere(ids[2], 2))
        self.assertTrue(self.isThere(ids[1], 2))
        self.assertTrue(self.isThere(ids[3], 2))
        self.assertEqual(self.cache.partitionCount, 3 + 1 + 3)

    def test_sizeChanges(self) -> None:
        """What counts is how many partitions a session has now."""
        first, second = self.begun(2), self.begun(3)
        self.clock.advance(121)
        self.assertTrue(self.isThere(second))
        added = [("u", index, 0) for index in range(5)]
        self.begin(*added, sessionId=first, epoch=1)
        self.begin(sessionId=first, epoch=2)
        self.assertEqual(self.begun(3), 0)
        self.assertGreater(self.begun(4), 0)
        self.assertFalse(self.isThere(second, 2))
        self.assertTrue(self.isThere(first, 3))

    def test_partitions(self) -> None:
        """The partitions of all sessions are limited; unused ones make room for a new session."""
        self.cache = self.newCache(9, partitionCountMax=10)
        first, second = self.begun(4), self.begun(4)
        self.assertEqual(self.begun(3), 0)
        self.clock.advance(60)
        self.assertTrue(self.isThere(second))
        self.clock.advance(61)
        self.assertEqual(self.begun(7), 0)
        self.assertEqual((self.isThere(first), self.cache.partitionCount), (False, 4))
        self.assertGreater(self.begun(6), 0)

    def test_growth(self) -> None:
        """A session that grows beyond the limit ends."""
        self.cache = self.newCache(9, partitionCountMax=4)
        sessionId = self.begun(3)
        self.begin(("u", 0, 0), sessionId=sessionId, epoch=1)
        self.assertRefused(
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ("u", 1, 0),
            sessionId=sessionId,
            epoch=2,
        )
        self.assertEqual((len(self.cache), self.cache.partitionCount), (0, 0))


class ReplicaSessionTests(CacheCase):
    """The sessions of replicas: what is looked at."""

    replica = ReplicaReader(2, 7)

    def ask(self, *wanted: Any, results: Any = None, **more: Any) -> FetchOutcome:
        context = self.begin(*wanted, version=13, replica=self.replica, **more)
        return context.finish([QUIET] * len(context.partitions) if results is None else results)

    def looked(self, sessionId: int, epoch: int, *wanted: Any, **more: Any) -> list[int]:
        context = self.begin(
            *wanted, version=13, sessionId=sessionId, epoch=epoch, replica=self.replica, **more
        )
        found = [each.key[1] for each in context.partitions]
        context.finish([QUIET] * len(found))
        return found

    def test_news(self) -> None:
        """Partitions with news are looked at, once."""
        sessionId = self.ask(*(("t", each, 0) for each in range(4))).sessionId
        self.assertEqual(self.looked(sessionId, 1), [])
        for index in (2, 0, 9):
            self.cache.tell((IDS["t"], index))
        self.assertEqual(self.looked(sessionId, 2), [2, 0])
        self.assertEqual(self.looked(sessionId, 3), [])

    def test_named(self) -> None:
        """Those that a request names are looked at behind those that waited, and always sent."""
        sessionId = self.ask(*(("t", each, 0) for each in range(4))).sessionId
        self.cache.tell((IDS["t"], 3))
        self.cache.tell((IDS["t"], 1))
        found = self.ask(("t", 1, 5), ("t", 2, 0), sessionId=sessionId, epoch=1)
        self.assertEqual(found.sent, [1, 2])

    def test_more(self) -> None:
        """What was refused, and what has more than was sent, is looked at again."""
        behind = QUIET._replace(isBehind=True)
        wanted = [("t", each, 0) for each in range(3)]
        sessionId = self.ask(*wanted, results=[FAILED, behind, FOUND]).sessionId
        self.assertEqual(self.looked(sessionId, 1), [0, 1])
        self.assertEqual(self.looked(sessionId, 2), [])

    def test_forgotten(self) -> None:
        """What leaves the session has no news."""
        sessionId = self.ask(("t", 0, 0), ("t", 1, 0)).sessionId
        self.cache.tell((IDS["t"], 0))
        self.assertEqual(self.looked(sessionId, 1, forgotten=[("t", 0)]), [])
        self.cache.tell((IDS["t"], 0))
        self.assertEqual(self.looked(sessionId, 2), [])

    def test_waits(self) -> None:
        """News come to a request that waits, until it ends, or another one waits."""
        sessionId = self.ask(("t", 0, 0), ("t", 1, 0)).sessionId
        at: dict[str, Any] = {"version": 13, "sessionId": sessionId, "replica": self.replica}
        first = self.begin(epoch=1, **at)
        calls: list[Any] = []
        end = first.whenNews(calls.append)
        self.cache.tell((IDS["t"], 1))
        self.assertEqual((calls, first.isForNews), ([(IDS["t"], 1)], True))
        self.assertEqual([each.key[1] for each in first.addNews()], [1])
        self.assertEqual(first.addNews(), [])
        second = self.begin(epoch=2, **at)
        later: list[Any] = []
        second.whenNews(later.append)
        end()
        self.cache.tell((IDS["t"], 0))
        self.assertEqual((len(calls), later), (1, [(IDS["t"], 0)]))
        overtaken = first.finish([QUIET])
        self.assertEqual(overtaken.errorCode, ErrorCode.INVALID_FETCH_SESSION_EPOCH)

    def test_one(self) -> None:
        """A replica has one session; that of an earlier registration is not its own."""
        first = self.ask(("t", 0, 0)).sessionId
        second = self.ask(("t", 0, 0)).sessionId
        at = {"version": 13, "epoch": 1}
        missing = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        self.assertRefused(missing, sessionId=first, replica=self.replica, **at)
        self.assertRefused(missing, sessionId=second, replica=ReplicaReader(2, 8), **at)
        self.assertRefused(missing, sessionId=second, replica=ReplicaReader(3, 7), **at)
        self.assertRefused(missing, sessionId=second, **at)
        self.assertEqual(self.looked(second, 1), [])
        self.assertEqual(len(self.cache), 0)

    def test_size(self) -> None:
        """A session that grows too large ends."""
        sessionId = self.ask(("t", 0, 0)).sessionId
        self.cache._partitionCountMax = 2
        wanted = [("t", each, 0) for each in range(3)]
        for epoch in (1, 2):
            self.assertRefused(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                *wanted,
                version=13,
                sessionId=sessionId,
                epoch=epoch,
                replica=self.replica,
            )

    def test_result(self) -> None:
        """A partition that was read to its end is at rest."""
        sessionId = self.ask(("t", 0, 0), results=[FetchResult()]).sessionId
        self.assertEqual(self.looked(sessionId, 1), [])
