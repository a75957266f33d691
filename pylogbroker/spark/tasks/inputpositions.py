"""
Where a job's inputs end, and where its query is. A module of its own, since it asks brokers beside
the query.

A query with timers has no end of its own, and one with repartitions writes what it reads. For those
C{--until-end} means: all is handled that the inputs had at the start, and all that came of it. The
positions are those of a micro-batch that has ended; the ends of repartition topics are asked for
behind it. All that it sent was confirmed by then, so when the positions are at these ends, nothing
is under way.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import checkCode
from pylogbroker.spark.kafka.options import KafkaSourceOptions
from pylogbroker.spark.kafka.ranges import LogBounds, asked, logBounds, selectedPartitions
from pylogbroker.spark.kafka.source import decodeKafkaCheckpoint
from pylogbroker.types import TopicPartition, byTopic

TIMEOUT_MS = 30_000


def handledUpTo(progress: Any) -> dict[TopicPartition, int]:
    """
    @param progress: of Spark, of the last micro-batch; L{None}: there was none yet.
    @return: the next offset of each partition that was read.
    """
    text = None if progress is None else progress.sources[0].endOffset
    found = decodeKafkaCheckpoint(json.loads(text)) if text else {}
    return {place: each.end for place, each in found.items()}


def checkpointTopics(checkpoint: str) -> set[str]:
    """
    The topics that a query has begun to read. Blocks.

    @param checkpoint: its folder, which need not be there.
    """
    folder = Path(checkpoint, "offsets")
    numbers = [int(each.name) for each in folder.glob("*") if each.name.isdecimal()]
    if not numbers:
        return set()
    last = (folder / str(max(numbers))).read_text(encoding="utf-8").splitlines()[-1]
    return {place.topic for place in decodeKafkaCheckpoint(json.loads(last))}


def _endsOf(bounds: Mapping[TopicPartition, LogBounds]) -> dict[TopicPartition, int]:
    """The ends of those partitions that have something."""
    return {place: each.latest for place, each in bounds.items() if each.latest > each.earliest}


class InputPositions:
    """
    The inputs of a query, and topics that it writes and reads.

    @ivar repartitions: the latter.
    """

    def __init__(self, options: Mapping[str, str], repartitions: Collection[str]) -> None:
        """
        @param options: of the source.
        @param repartitions: topics.
        """
        self._options = KafkaSourceOptions.fromOptions(options)
        self.repartitions = frozenset(repartitions)
        self._ends: dict[TopicPartition, int] = {}
        self._purged: dict[TopicPartition, int] = {}

    def _found(self, ofRepartitions: bool) -> dict[TopicPartition, LogBounds]:
        """Where partitions begin and end now."""
        options = self._options

        def ask() -> dict[TopicPartition, LogBounds]:
            with options.cluster() as cluster:
                places = [
                    place
                    for place in selectedPartitions(options, cluster)
                    if (place.topic in self.repartitions) == ofRepartitions
                ]
                return logBounds(options, cluster, places)

        return asked(options, ask)

    def fixEnds(self) -> dict[str, str]:
        """
        What the inputs have now is to be handled.

        @return: options of the source, with which a stream reads no more of them.
        @raise PylogbrokerError: no broker can be asked.
        """
        found = self._found(ofRepartitions=False)
        self._ends = _endsOf(found)
        stops = byTopic({place: each.latest for place, each in found.items()})
        return {"stopOffsets": json.dumps(stops)}

    def areReached(self, handled: Mapping[TopicPartition, int]) -> bool:
        """
        Whether nothing is left.

        @param handled: L{handledUpTo}, and no micro-batch may have begun to send since then what is
            not to be waited for.
        @raise PylogbrokerError: as L{fixEnds}.
        """
        if any(handled.get(place, -1) < end for place, end in self._ends.items()):
            return False
        if not self.repartitions:
            return True
        ends = _endsOf(self._found(ofRepartitions=True))
        return all(handled.get(place, -1) >= end for place, end in ends.items())

    def purge(self, handled: Mapping[TopicPartition, int]) -> None:
        """
        Delete from repartition topics what is handled.

        @raise PylogbrokerError: it may not be deleted, or no broker can be asked.
        """
        wanted = {
            place: offset
            for place, offset in handled.items()
            if place.topic in self.repartitions and offset > self._purged.get(place, 0)
        }
        if not wanted:
            return
        cls = messages.DeleteRecordsRequest
        with self._options.cluster() as cluster:
            for place, offset in wanted.items():
                part = cls.DeleteRecordsPartition(partitionIndex=place.partition, offset=offset)
                topic = cls.DeleteRecordsTopic(name=place.topic, partitions=[part])
                body = cls(topics=[topic], timeoutMs=TIMEOUT_MS)
                leader = cluster.broker(cluster.leader(place))
                [found] = leader.request(ApiKey.DELETE_RECORDS, body, TIMEOUT_MS).topics
                checkCode(found.partitions[0].errorCode, str(place))
        self._purged.update(wanted)
