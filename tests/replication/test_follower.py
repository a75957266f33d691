"""
The follower of a partition: what it fetches, truncates and takes for committed.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.follower import (
    AppendRecords,
    FetchState,
    Flush,
    FollowerEffect,
    FollowerReplica,
    FollowerSettings,
    SetHighWatermark,
    StartOver,
    Truncate,
)
from pylogbroker.replication.replicafetch import ReplicaFetch, ReplicaFetchAnswer
from pylogbroker.storage.kafka.epochs import EpochStart
from tests.replication.manuallog import ManualLog


class FollowerCase(SynchronousTestCase):
    """Broker 2, whose log has records 0 to 9 of epochs 1 and 3, and the watermark 6."""

    def follow(self, isFlushed: bool = True, flushedOffset: int = 10) -> None:
        self.log = ManualLog([EpochStart(1, 0), EpochStart(3, 7)])
        self.log.flushedOffset, self.epochs = flushedOffset, self.log.epochs
        settings = FollowerSettings(isFlushed, 1_000)
        self.follower = FollowerReplica(2, 20, self.log, 6, settings)
        self.effects = self.follower.leaderChanged(1, 5)

    def ask(self, nowMs: int = 0) -> ReplicaFetch:
        request = self.follower.nextFetch(nowMs)
        assert request is not None
        return request

    def answer(self, hasRecords: bool = False, **fields: object) -> list[FollowerEffect]:
        answer = ReplicaFetchAnswer(ErrorCode.NONE, 9, 0)._replace(**fields)  # type: ignore[arg-type]
        return self.follower.answered(self.ask(), answer, hasRecords, 0)


class FetchTests(FollowerCase):
    """What is asked for."""

    def test_request(self) -> None:
        """A fetch names the log's end and the epoch of the record before it."""
        self.follow()
        self.assertEqual(self.ask(), ReplicaFetch(2, 20, 5, 10, 3, 1))
        self.assertIsNone(self.follower.nextFetch(0))

    def test_emptyEpoch(self) -> None:
        """An epoch without records is not named."""
        self.follow()
        self.epochs.assign(4, 10)
        self.assertEqual(self.ask().lastFetchedEpoch, 3)

    def test_flushedFirst(self) -> None:
        """Nothing is asked for while the log has unflushed records."""
        self.follow(flushedOffset=8)
        self.assertEqual(self.effects, [Flush()])
        self.assertIsNone(self.follower.nextFetch(0))
        self.assertEqual(self.follower.flushed(9), [])
        self.assertEqual(self.follower.flushed(10), [])
        self.assertEqual(self.ask().offset, 10)

    def test_unflushed(self) -> None:
        """Apache's way does not wait."""
        self.follow(isFlushed=False, flushedOffset=0)
        self.assertEqual((self.effects, self.ask().offset), ([], 10))

    def test_noLeader(self) -> None:
        """Without a leader, or when this broker leads, nothing is asked for."""
        self.follow()
        for leaderEpoch, leader in enumerate((-1, 2), 6):
            self.follower.leaderChanged(leader, leaderEpoch)
            self.assertIs(self.follower.state, FetchState.IDLE)
            self.assertIsNone(self.follower.nextFetch(0))

    def test_backOff(self) -> None:
        """After an error, or without an answer, it waits."""
        self.follow()
        self.assertEqual(self.answer(error=ErrorCode.UNKNOWN_LEADER_EPOCH), [])
        self.assertIsNone(self.follower.nextFetch(999))
        request = self.ask(1_000)
        self.follower.unanswered(request, 1_000)
        self.assertIsNone(self.follower.nextFetch(1_999))
        self.assertEqual(self.ask(2_000).number, 3)

    def test_notLeadingYet(self) -> None:
        """
        A broker that does not know yet that it leads is soon asked again: each time later, up to
        the usual back-off. A later leader is waited for as shortly.
        """
        self.follow()
        settings = FollowerSettings(True, 100, firstBackOffMs=20)
        self.follower = FollowerReplica(2, 20, self.log, 6, settings)
        nowMs = 0
        for leaderEpoch in (5, 6):
            self.follower.leaderChanged(1, leaderEpoch)
            for waitMs in (20, 40, 80, 100, 100):
                answer = ReplicaFetchAnswer(ErrorCode.UNKNOWN_LEADER_EPOCH)
                self.follower.answered(self.ask(nowMs), answer, False, nowMs)
                nowMs += waitMs
                self.assertEqual(self.follower.retryMs, nowMs)
                self.assertIsNone(self.follower.nextFetch(nowMs - 1))
        self.follower.unanswered(self.ask(nowMs), nowMs)
        self.assertEqual(self.follower.retryMs, nowMs + 100)

    def test_newLeader(self) -> None:
        """A new leader is asked at once, and the old one's answer is dropped."""
        self.follow()
        request = self.ask()
        self.follower.leaderChanged(3, 6)
        self.assertEqual(self.follower.answered(request, ReplicaFetchAnswer(), True, 0), [])
        self.follower.unanswered(request, 0)
        self.assertEqual(self.ask().leaderEpoch, 6)

    def test_oldLeader(self) -> None:
        """An epoch that is not later changes nothing."""
        self.follow()
        self.assertEqual(self.follower.leaderChanged(3, 5), [])
        self.assertEqual(self.follower.leader, 1)

    def test_failed(self) -> None:
        """When the log has failed nothing is done any more."""
        self.follow()
        self.answer(hasRecords=True)
        self.follower.logFailed()
        self.assertEqual(self.follower.appended(11), [])
        self.assertEqual(self.follower.leaderChanged(3, 6), [])
        self.assertIs(self.follower.state, FetchState.FAILED)


class AnswerTests(FollowerCase):
    """What is done with answers."""

    def test_records(self) -> None:
        """Records are appended, then flushed, then counted, and then the next are asked for."""
        self.follow()
        self.assertEqual(self.answer(hasRecords=True, highWatermark=11), [AppendRecords()])
        self.assertEqual(self.follower.flushed(10), [])
        self.assertIs(self.follower.state, FetchState.WRITING)
        self.assertEqual(self.follower.appended(12), [Flush()])
        self.assertIsNone(self.follower.nextFetch(0))
        self.assertEqual(self.follower.flushed(12), [SetHighWatermark(11, 0)])
        self.assertEqual(self.ask().offset, 12)

    def test_watermark(self) -> None:
        """The watermark is the leader's, but not behind the log's end, and does not go back."""
        self.follow()
        self.assertEqual(self.answer(highWatermark=8), [SetHighWatermark(8, 0)])
        self.assertEqual(self.answer(highWatermark=7), [])
        self.assertEqual(self.answer(highWatermark=15), [SetHighWatermark(10, 0)])

    def test_logStart(self) -> None:
        """
        What the leader has deleted is deleted before the watermark moves: the leader cannot tell
        whether these records are its own.
        """
        self.follow()
        effects = self.answer(highWatermark=8, logStartOffset=3)
        self.assertEqual(effects, [SetHighWatermark(8, 3)])
        self.log.logStartOffset = 3
        self.assertEqual(self.answer(highWatermark=8, logStartOffset=3), [])
        effects = self.answer(highWatermark=8, logStartOffset=8)
        self.assertEqual(effects, [SetHighWatermark(8, 8)])

    def test_leaderChangesMeanwhile(self) -> None:
        """A new leader is followed when the log is at rest; the old one's watermark is dropped."""
        self.follow()
        self.answer(hasRecords=True)
        self.assertEqual(self.follower.leaderChanged(3, 6), [])
        self.assertEqual(self.follower.appended(12), [Flush()])
        self.assertEqual(self.follower.leaderChanged(1, 7), [])
        self.assertEqual(self.follower.flushed(12), [])
        self.assertEqual(self.ask()[2:4], (7, 12))

    def test_diverging(self) -> None:
        """The log is truncated to where its epochs part from the leader's."""
        self.follow()
        diverging = EpochStart(2, 9)
        self.assertEqual(self.answer(diverging=diverging), [Truncate(7, False)])
        self.assertIsNone(self.follower.nextFetch(0))
        self.epochs.truncateFromEnd(7)
        self.assertEqual(self.follower.truncated(7), [])
        self.assertEqual(self.ask()[3:5], (7, 1))

    def test_belowWatermark(self) -> None:
        """A truncation below the watermark is told, and takes the watermark with it."""
        self.follow()
        self.assertEqual(self.answer(diverging=EpochStart(1, 4)), [Truncate(4, True)])
        self.follower.truncated(4)
        self.assertEqual(self.follower.highWatermark, 4)

    def test_startOver(self) -> None:
        """A log that ends before the leader's begins anew, and has nothing to flush."""
        self.follow()
        out = ErrorCode.OFFSET_OUT_OF_RANGE
        self.assertEqual(self.answer(error=out, logStartOffset=30), [StartOver(30)])
        self.epochs.entries = ()
        self.assertEqual(self.follower.startedOver(30), [])
        self.assertEqual(self.ask()[3:5], (30, -1))
        self.assertEqual(self.follower.highWatermark, 30)

    def test_emptyStartsOver(self) -> None:
        """An empty log behind the end of a leader that was elected uncleanly begins anew, too."""
        self.follow()
        out = ErrorCode.OFFSET_OUT_OF_RANGE
        self.epochs.entries = ()
        self.assertEqual(self.answer(error=out, logStartOffset=2), [StartOver(2)])

    def test_outOfRange(self) -> None:
        """Otherwise an offset out of range is an error like others."""
        self.follow()
        self.assertEqual(self.answer(error=ErrorCode.OFFSET_OUT_OF_RANGE), [])
        self.assertIs(self.follower.state, FetchState.DELAYED)
