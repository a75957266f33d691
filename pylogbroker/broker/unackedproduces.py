"""
What was produced on a connection, and which no answer has followed yet.

A producer takes the answer to an OFFSETS request for the proof that the broker has taken all that it sent before on that connection. A disk can fail, or be
full, between the two: what was accepted was still in memory, and is lost or held up, and the producer was not told, since nothing in this protocol tells
it. So the answer has to wait, or must not come at all (L{pylogbroker.broker.logmanager.LogManager.proven}), and for that one has to know where the connection's
messages went.

Remembered are topic and partition of the requests, so many at most; who produces to more without ever asking is taken to have produced everywhere.
Only what fails after the first of them matters: a produce request to a partition that is out of service already is refused, and ends its connection. So it is
remembered, too, how many had failed by then; else one old failure would end the connection of everyone who produces everywhere.

Remembered is, too, that a message was dropped since it is too large. A produce request has no answer, and in 0.7.2 the question behind such a one is answered
(spec-0.7 wire-protocol §11), so that a producer takes for kept what is nowhere. Here it never is again on that connection. Clients of 0.7 do not notice: their
producers do not ask, and who asks, a consumer, does it over a connection of its own (spec-0.7 gotchas §3).

Rejected: closing all connections when a partition fails. It is as safe, and would make every producer of the broker send again what is in no danger.
"""

from __future__ import annotations

from collections.abc import Callable

from pylogbroker.types import RANDOM_PARTITION, TopicPartition

PLACE_COUNT_MAX = 64


class UnackedProduces:
    """
    Where the messages of one connection went since its last answer to an OFFSETS request.

    @ivar failedPartitionsBefore: how many partitions of the broker were out of service before anything went anywhere.
    @ivar dropped: why something was dropped, the first time that it happened; L{None}: nothing was.
    """

    __slots__ = ("_places", "dropped", "failedPartitionsBefore")

    def __init__(self) -> None:
        self._places: set[tuple[str, int]] | None = (
            None  # most connections produce nothing, and there are thousands of them
        )
        self.failedPartitionsBefore = 0
        self.dropped: str | None = None

    def add(self, topic: str, partition: int, lostCount: Callable[[], int]) -> None:
        """
        Something is about to be produced.

        @param partition: may be L{RANDOM_PARTITION}.
        @param lostCount: tells how many partitions are out of service; asked for the first.
        """
        places = self._places
        if places is None:
            self._places = {(topic, partition)}
            self.failedPartitionsBefore = lostCount()
        elif len(places) < PLACE_COUNT_MAX:
            places.add((topic, partition))

    def drop(self, reason: str) -> None:
        """Something was dropped, which nothing makes good: the connection stays unproven."""
        self.dropped = self.dropped or reason

    def concerns(self, where: TopicPartition) -> bool:
        """Whether messages may have gone to a partition."""
        places = self._places
        if places is None:
            return False
        return (
            len(places) >= PLACE_COUNT_MAX
            or where in places
            or (where.topic, RANDOM_PARTITION) in places
        )

    def clear(self) -> None:
        """All of it has been taken, and an answer says so."""
        if self._places:
            self._places = None
