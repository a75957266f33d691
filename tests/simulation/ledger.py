"""
What was sent, what became of it, what is in the logs, and what the group got: and whether that fits
together.

What has to hold is written at L{Ledger.faults}, each rule with its own sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pylogbroker.types import PartitionId

FAULT_COUNT_MAX = 5
"""Of each kind that are told."""

SENT, FAILED, UNKNOWN, UNDER_WAY = "sent", "failed", "unknown", "under way"


class Sending(NamedTuple):
    """
    A message that was given to a producer.

    @ivar number: of the producer's messages.
    @ivar view: of partitions, numbered by the producer: those of one number were sent while nothing
        changed.
    """

    producer: str
    key: str | None
    number: int
    view: int


class Sender(NamedTuple):
    """
    A message that an application got.

    @ivar seconds: when.
    """

    seconds: float
    member: str
    place: PartitionId
    payload: bytes
    nextOffset: int


Trouble = tuple[float, float]
"""From when to when a member had trouble that explains that somebody gets a message again."""

Log = list[tuple[bytes, int]]


class Ledger:
    """
    @ivar outcomes: of each payload.
    @ivar repeats: of each producer, how many messages it reported as sent again after an unknown
        outcome; and how many as sent again at all.
    @ivar troubles: of each member.
    """

    def __init__(self) -> None:
        self.sendings: dict[bytes, Sending] = {}
        self.outcomes: dict[bytes, str] = {}
        self.repeats: dict[str, tuple[int, int]] = {}
        self.deliveries: list[Sender] = []
        self.troubles: dict[str, list[Trouble]] = {}

    def sent(self, payload: bytes, sending: Sending) -> None:
        """A message was given to a producer."""
        self.sendings[payload] = sending
        self.outcomes[payload] = UNDER_WAY

    def counts(self) -> Counter[str]:
        """How often each outcome."""
        return Counter(self.outcomes.values())

    def faults(self, logs: Mapping[PartitionId, Log]) -> list[str]:
        """
        What does not fit together.

        @param logs: what is in them at the end.
        """
        return [
            fault
            for rule in (self._inLogs, self._inOrder, self._delivered, self._again)
            for fault in list(rule(logs))[:FAULT_COUNT_MAX]
        ]

    def duplicateCount(self, logs: Mapping[PartitionId, Log]) -> int:
        """Messages in the logs that are there already."""
        copies = Counter(payload for log in logs.values() for payload, _ in log)
        return sum(count - 1 for count in copies.values())

    def undelivered(self, logs: Mapping[PartitionId, Log]) -> Iterable[bytes]:
        """What nobody in the group has got yet."""
        got = {delivery[2:] for delivery in self.deliveries}
        return (
            entry[0] for place, log in logs.items() for entry in log if (place, *entry) not in got
        )

    def insideCount(self, logs: Mapping[PartitionId, Log]) -> int:
        """Messages inside wrappers, each wrapper's last one not counted."""
        return sum(1 for log in logs.values() for _ in _inside(log))

    # -- the rules

    def _inLogs(self, logs: Mapping[PartitionId, Log]) -> Iterable[str]:
        """
        Sent = in the logs + reported failed or unknown; and in the logs twice only by a reported
        retry.
        """
        copies = Counter(payload for log in logs.values() for payload, _ in log)
        extra: Counter[str] = Counter()
        for payload, outcome in self.outcomes.items():
            count = copies.pop(payload, 0)
            if outcome == UNDER_WAY:
                yield f"{payload!r}: nobody was told what became of it"
            elif outcome == SENT and not count:
                yield f"{payload!r} was reported as sent, and is in no log"
            elif outcome == FAILED and count:
                yield f"{payload!r} was reported as failed, and is in the logs {count} times"
            extra[self.sendings[payload].producer] += max(0, count - 1)
        for payload in copies:
            yield f"{payload!r} is in the logs, and nobody has sent it"
        for producer, count in extra.items():
            repeatedCount, _ = self.repeats[producer]
            if count > repeatedCount:
                yield (
                    f"{count} messages of {producer} are in the logs once more, and it reported"
                    f" {repeatedCount} as sent again"
                )

    def _inOrder(self, logs: Mapping[PartitionId, Log]) -> Iterable[str]:
        """
        Messages of one producer and key are in a partition in the order of sending, as long as none
        is sent again and no broker comes or goes. One that was reported as unknown may come late: a
        broker carries out what it has received of a connection that was cut, when it comes to that.
        """
        for place, log in logs.items():
            last: dict[tuple[str, str, int], int] = {}
            for payload, _ in log:
                producer, key, number, view = self.sendings.get(payload, Sending("", None, 0, 0))
                if key is None or self.repeats[producer][1] or self.outcomes[payload] != SENT:
                    continue
                if number <= last.get((producer, key, view), -1):
                    yield (
                        f"{place}: {payload!r} is behind number {last[producer, key, view]} of the"
                        " same key"
                    )
                last[producer, key, view] = number

    def _delivered(self, logs: Mapping[PartitionId, Log]) -> Iterable[str]:
        """
        Nothing in the logs is missing in the group; who goes on in a partition skips nothing; what
        was handed out is in the logs.
        """
        frontier: dict[PartitionId, int] = dict.fromkeys(logs, 0)
        for delivery, found in self._found(logs):
            if found is None:
                yield f"{delivery} is not in the log"
            elif found > frontier[delivery.place]:
                missing = logs[delivery.place][frontier[delivery.place]]
                yield f"{delivery} came before {missing} was delivered to anybody"
            else:
                frontier[delivery.place] = max(frontier[delivery.place], found + 1)
        for place, log in logs.items():
            if frontier[place] < len(log):
                yield f"{place}: the group got {frontier[place]} of {len(log)} messages"

    def _found(self, logs: Mapping[PartitionId, Log]) -> Iterable[tuple[Sender, int | None]]:
        """
        Which message of its log each delivery was.

        A wrapper's last message and one inside the next wrapper have the same next offset, and by a
        retry they can be the same message: then it is the one that the member, or else the group,
        had to get next.
        """
        indices: dict[tuple[PartitionId, bytes, int], list[int]] = {}
        for place, log in logs.items():
            for i, entry in enumerate(log):
                indices.setdefault((place, *entry), []).append(i)
        last: dict[tuple[str, PartitionId], int] = {}
        frontier: dict[PartitionId, int] = {}
        for delivery in self.deliveries:
            found = indices.get((delivery.place, delivery.payload, delivery.nextOffset))
            if found is None:
                yield delivery, None
                continue
            likely = (
                last.get((delivery.member, delivery.place), -1) + 1,
                frontier.get(delivery.place, 0),
            )
            index = next((each for each in likely if each in found), found[0])
            last[delivery.member, delivery.place] = index
            frontier[delivery.place] = max(frontier.get(delivery.place, 0), index + 1)
            yield delivery, index

    def _again(self, logs: Mapping[PartitionId, Log]) -> Iterable[str]:
        """
        A message is delivered again only after trouble with who had it, or in one compressed set.
        """
        inside = {place: set(_inside(log)) for place, log in logs.items()}
        before: dict[tuple[PartitionId, int], Sender] = {}
        last: dict[tuple[str, PartitionId], tuple[Sender, int]] = {}
        for delivery, index in self._found(logs):
            if index is None:
                continue
            place = delivery.place
            earlier = before.get((place, index))
            if earlier is not None and not self._isTroubled(earlier, delivery):
                left, leftIndex = last[earlier.member, place]
                if left.nextOffset != delivery.nextOffset or leftIndex not in inside[place]:
                    yield f"{delivery} came again, after {earlier}"
            before[place, index] = delivery
            last[delivery.member, place] = delivery, index

    def _isTroubled(self, earlier: Sender, again: Sender) -> bool:
        troubles = [*self.troubles.get(earlier.member, ()), *self.troubles.get(again.member, ())]
        return any(begin <= again.seconds and end >= earlier.seconds for begin, end in troubles)


def _inside(log: Log) -> Iterable[int]:
    """
    Messages of a wrapper but its last: their next offset is the wrapper's own, since who stops
    there gets it all again.
    """
    end = 0
    for index, (_payload, nextOffset) in enumerate(log):
        if nextOffset <= end:
            yield index
        end = max(end, nextOffset)
