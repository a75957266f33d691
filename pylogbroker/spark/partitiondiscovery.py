"""
The cluster as a plan needs it: which partitions there are, and the brokers that have them, found with patience.

A broker that restarts is missing from ZooKeeper for a moment. So who knows what must be there says so, and it is looked for as often as a broker would be
asked; then it is an error, or data that are gone, but never a plan without it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import BrokerConnectionError, NoBrokersError, ZookeeperError
from pylogbroker.retry import RetryPolicy
from pylogbroker.spark.brokerclients import BrokerClients, retryPolicy
from pylogbroker.spark.options import ClusterOptions, Selection
from pylogbroker.syncclient.clustermetadata import IClusterMetadata
from pylogbroker.types import PartitionId

log = logging.getLogger(__name__)


class Cluster:
    """
    A context manager: leaving it closes what is open. It can be used again, and connects then.
    """

    def __init__(self, options: ClusterOptions, patience: RetryPolicy | None = None) -> None:
        """
        @param patience: by default that of the options.
        """
        self._options = options
        self._patience = patience or retryPolicy(options.retryCount)
        self._view: IClusterMetadata = options.view()
        self._known: list[PartitionId] = []
        self._addresses: dict[int, BrokerAddress] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self._view.close()

    def places(
        self, selection: Selection, expected: Collection[PartitionId] = ()
    ) -> list[PartitionId]:
        """
        The partitions to read, sorted.

        @param expected: what should be among them; it is looked for several times.
        @raise NoBrokersError: a topic that is named is on no broker.
        @raise ConnectionError: a broker of a list gives no answer.
        @raise ZookeeperError: ZooKeeper cannot be asked, and could not be before.
        """
        for isLast in self._patience.attempts():
            try:
                found = findPlaces(self._view, selection)
            except (NoBrokersError, BrokerConnectionError) as error:
                if isLast:
                    raise type(error)(
                        f"{error} (looked for {self._patience.retryCount + 1} times in {self._options.name})"
                    ) from error
                log.warning("The partitions are looked for again: %s", error)
            except ZookeeperError as error:
                if not self._known:
                    raise
                log.warning(
                    "ZooKeeper cannot be asked, so that no new partitions are found: %s", error
                )
                return self._known
            else:
                self._known = found
                if set(found).issuperset(expected):
                    break
        return self._known

    def brokers(self, numbers: Iterable[int]) -> BrokerClients:
        """
        Clients; to be closed.

        @param numbers: of brokers that should be there.
        @raise NoBrokersError: one is not, though it was looked for several times.
        @raise ZookeeperError: ZooKeeper cannot be asked, and did not tell of all of them when it last could.
        """
        wanted = set(numbers)
        for _isLast in self._patience.attempts():
            self._look(wanted)
            if wanted.issubset(self._addresses):
                return BrokerClients(self._addresses, self._options, self._patience)
        missing, there = (
            min(wanted.difference(self._addresses)),
            ", ".join(map(str, sorted(self._addresses))) or "none",
        )
        raise NoBrokersError(
            f"there is no broker {missing}, though it was looked for {self._patience.retryCount + 1} times; there are {there}"
        )

    def _look(self, wanted: set[int]) -> None:
        """Where the brokers are now, or were when ZooKeeper could last be asked: one that has moved since gives no answer there, which is told."""
        try:
            self._addresses = self._view.brokers()
        except ZookeeperError as error:
            if not wanted.issubset(self._addresses):
                raise
            log.warning(
                "ZooKeeper cannot be asked, so that brokers are looked for where they were: %s",
                error,
            )


def findPlaces(view: IClusterMetadata, selection: Selection) -> list[PartitionId]:
    """
    The partitions to read, as they are now, sorted.

    @raise NoBrokersError: a topic that is named is on no broker.
    """
    if selection.assigned is not None:
        return sorted(
            PartitionId(topic, partition)
            for topic, partitions in selection.assigned.items()
            for partition in partitions
        )
    names: Iterable[str] = selection.topics
    if selection.pattern:
        matches = TopicPattern(selection.pattern).matches
        names = [name for name in view.topics() if matches(name)]
    found: list[PartitionId] = []
    for topic in sorted(names):
        partitions = view.partitions(topic)
        if not partitions and not selection.pattern:
            raise NoBrokersError(f"there is no broker that has topic {topic}")
        found += [PartitionId(topic, partition) for partition in partitions]
    return found


def isSelected(selection: Selection, place: PartitionId) -> bool:
    """Whether a partition is one to read, if somebody has it."""
    if selection.assigned is not None:
        return place.partition in selection.assigned.get(place.topic, ())
    if selection.pattern:
        return TopicPattern(selection.pattern).matches(place.topic)
    return place.topic in selection.topics
