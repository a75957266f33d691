"""
What a run of the loader needs to know of the topics that it loads. L{run} plans, writes, counts and
commits alike for both protocols; L{kafka07} and L{kafka} have what only one of them has.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pylogbroker.errors import ConfigurationError, InvalidNameError, LoadError
from pylogbroker.lake.loadplan import PlannedRange
from pylogbroker.lake.table import LEVELS
from pylogbroker.types import AnyPartition, OffsetBounds, byTopic

FOLDER_NAME_SIZE_MAX = 255
"""Bytes, on every common file system."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(1, 32)))
"""
Characters that Spark writes as three in a folder name (C{ExternalCatalogUtils.escapePathName}).
"""

StartOffsets = str | Mapping[str, Mapping[str, int]] | None


class FoundLogs(NamedTuple):
    """
    The partitions to load.

    @ivar notes: sentences for the user.
    @ivar waiting: those that end before the table for a while, and have nothing to load unless a
        start is given.
    """

    bounds: Mapping[AnyPartition, OffsetBounds]
    notes: tuple[str, ...] = ()
    waiting: frozenset[AnyPartition] = frozenset()


class TopicSource(ABC):
    """
    The topics of a run.

    @ivar kind: of their partitions.
    @ivar title: for the user.
    @ivar given: the data source's options.
    @ivar isLossFatal: whether messages deleted before they were loaded are an error.
    """

    kind: type[AnyPartition]
    title: str
    given: Mapping[str, str]
    isLossFatal: bool

    @abstractmethod
    def logs(self, positions: Mapping[AnyPartition, int]) -> FoundLogs:
        """
        Ask the brokers.

        @param positions: where the table ends.
        @raise PylogbrokerError: a topic does not exist, or a broker does not answer.
        """

    @abstractmethod
    def parseOffsets(self, text: str) -> int | Mapping[Any, int]:
        """
        Start offsets: a word as C{EARLIEST} or C{LATEST}, or offsets by partition of C{kind}.

        @raise ValueError: the text has another form.
        @raise InvalidNameError: a topic has an impossible name.
        """

    @abstractmethod
    def assigned(self, name: str) -> str | int:
        """
        A partition as the data source's option C{assign} has it.

        @param name: as its offsets have it.
        """

    def readOptions(self, ranges: Collection[PlannedRange]) -> dict[str, str]:
        """The options with which the data source reads the ranges, which are not empty."""
        starts = byTopic({each.partition: each.fromOffset for each in ranges})
        ends = byTopic({each.partition: each.toOffset for each in ranges})
        assigned = {topic: list(map(self.assigned, offsets)) for topic, offsets in starts.items()}
        return {
            **{
                name: value
                for name, value in self.given.items()
                if not name.lower().startswith("subscribe")
            },
            "assign": json.dumps(assigned),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }

    @abstractmethod
    def lossColumns(self, fresh: StructType) -> StructType:
        """
        The columns that C{lossNotes} needs, besides those that are counted.

        @param fresh: the columns of the run, of which a transform may have dropped some.
        """

    @abstractmethod
    def lossNotes(
        self, rows: DataFrame | None, ranges: Collection[PlannedRange]
    ) -> tuple[str, ...]:
        """
        A sentence for each range of which messages were deleted while it was read.

        @param rows: of the ranges, as they were written; L{None}: there are none.
        @raise PylogbrokerError: a broker that is asked does not answer.
        """

    @abstractmethod
    def logSize(self, ranges: Collection[PlannedRange]) -> int:
        """Bytes of the log in the ranges; 0 if offsets do not tell."""


def checkFolder(topic: str) -> None:
    """
    @raise LoadError: the topic's name is too long for a folder. Spark would fail after reading all.
    """
    size = len(LEVELS[0]) + sum(
        3 if char in _ESCAPED else len(char.encode("utf-8", "surrogatepass")) for char in topic
    )
    if size > FOLDER_NAME_SIZE_MAX:
        raise LoadError(
            f"topic {topic}: the name is too long for a folder, which would have a name of"
            f" {size} bytes; {FOLDER_NAME_SIZE_MAX} are allowed"
        )


def parseStartOffsets(
    given: StartOffsets,
    parse: Callable[[str], int | Mapping[Any, int]],
    partitions: Collection[AnyPartition],
) -> Mapping[AnyPartition, int]:
    """
    @param given: C{"earliest"}, C{"latest"}, or offsets by topic and partition, as JSON or values.
    @param parse: C{TopicSource.parseOffsets}.
    @param partitions: to load; the words apply to them.
    @raise ConfigurationError: it has another form.
    """
    if not given:
        return {}
    try:
        found = parse(given if isinstance(given, str) else json.dumps(given))
    except (TypeError, ValueError, InvalidNameError) as error:
        raise ConfigurationError(f"startOffsets={given!r}: {error}") from error
    return dict.fromkeys(partitions, found) if isinstance(found, int) else found
