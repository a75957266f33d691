"""
The metadata log and the sessions in ZooKeeper, as a model: one list of changes, each decided on all
before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pylogbroker.cluster.metadataimage import (
    MetadataImage,
    Record,
    decodeRecords,
    encodeRecords,
)

KEPT_COUNT = 6
"""Changes behind the last one that can be read; before them there is a snapshot."""


class MetadataLog:
    """
    @ivar image: with all changes. Not to be changed.
    @ivar last: the number of the last change.
    @ivar nodes: the session of each broker that has one, by broker.
    @ivar heardMs: when a session was heard of last, by session.
    @ivar controller: the session that owns the controller's node.
    @ivar controllerEpoch: grows with each controller.
    """

    def __init__(self) -> None:
        self.image = MetadataImage()
        self._changes: list[Sequence[Record]] = []
        self._snapshots: dict[int, bytes] = {}
        self.nodes: dict[int, int] = {}
        self.heardMs: dict[int, int] = {}
        self.controller: int | None = None
        self.controllerEpoch = 0
        self._sessionCount = 0

    @property
    def last(self) -> int:
        return len(self._changes)

    def append(self, records: Sequence[Record]) -> int:
        """Returns the number of the change."""
        made = self.image.copy()
        for record in records:
            made.apply(record)
        self.image = made
        self._changes.append(records)
        return self.last

    def read(self, image: MetadataImage, position: int, count: int) -> tuple[MetadataImage, int]:
        """
        Up to C{count} changes behind a position; from the snapshot, if they are gone.

        @return: the image, and its position.
        """
        made = image.copy()
        oldest = max(self.last - KEPT_COUNT, 0)
        if position < oldest:
            made, position = self.snapshot(), self.last
        for change in self._changes[position : position + count]:
            for record in change:
                made.apply(record)
            position += 1
        return made, position

    def snapshot(self) -> MetadataImage:
        """The image as a snapshot has it."""
        made = MetadataImage()
        for record in decodeRecords(encodeRecords(list(self.image.records()))):
            made.apply(record)
        return made

    # -- sessions

    def connect(self, brokerId: int, nowMs: int) -> int:
        """A broker makes its node, in a new session; that of an earlier process is gone."""
        self._end(self.nodes.get(brokerId))
        self._sessionCount += 1
        self.nodes[brokerId] = self._sessionCount
        self.heardMs[self._sessionCount] = nowMs
        return self._sessionCount

    def expire(self, nowMs: int, timeoutMs: int) -> int:
        """Sessions that were not heard of end. Returns how many."""
        ended = [each for each, heardMs in self.heardMs.items() if nowMs - heardMs > timeoutMs]
        for session in ended:
            self._end(session)
        return len(ended)

    def _end(self, session: int | None) -> None:
        if session is None:
            return
        self.heardMs.pop(session, None)
        self.nodes = {each: found for each, found in self.nodes.items() if found != session}
        if self.controller == session:
            self.controller = None

    def takeController(self, session: int) -> int:
        """Returns the epoch of the new controller."""
        self.controller = session
        self.controllerEpoch += 1
        return self.controllerEpoch
