"""
Which partitions and brokers a query has to read.

A broker that restarts is missing from ZooKeeper for a moment. Callers therefore name the partitions
that they expect, and discovery repeats. A partition that stays away is then an error or lost data;
a plan never silently lacks it.
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


class PartitionDiscovery:
    """
    Partitions and brokers of one cluster. A context manager: leaving it closes the connection to
    ZooKeeper; the next call opens it again.
    """

    def __init__(
        self,
        options: ClusterOptions,
        policy: RetryPolicy | None = None,
        metadata: IClusterMetadata | None = None,
    ) -> None:
        """
        @param policy: by default C{retryCount} of the options.
        @param metadata: by default that of the options. This object closes it.
        """
        self._options = options
        self._policy = policy or retryPolicy(options.retryCount)
        self._metadata = metadata or options.metadata()
        self._known: list[PartitionId] = []
        self._addresses: dict[int, BrokerAddress] = {}

    def __enter__(self) -> PartitionDiscovery:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to ZooKeeper."""
        self._metadata.close()

    def partitions(
        self, selection: Selection, expected: Collection[PartitionId] = ()
    ) -> list[PartitionId]:
        """
        The partitions to read, sorted.

        @param expected: partitions to wait for, within the retry policy.
        @raise NoBrokersError: no broker has a topic that is named.
        @raise BrokerConnectionError: a listed broker does not answer.
        @raise ZookeeperError: ZooKeeper cannot be read, and never could.
        """
        for isLast in self._policy.attempts():
            try:
                found = findPartitions(self._metadata, selection)
            except (NoBrokersError, BrokerConnectionError) as error:
                if isLast:
                    raise type(error)(
                        f"{error} ({self._policy.retryCount + 1} attempts in {self._options.name})"
                    ) from error
                log.warning("Looking for the partitions again: %s", error)
            except ZookeeperError as error:
                if not self._known:
                    raise
                log.warning("Cannot read ZooKeeper, so new partitions stay unknown: %s", error)
                return self._known
            else:
                self._known = found
                if set(found).issuperset(expected):
                    break
        return self._known

    def brokers(self, brokerIds: Iterable[int]) -> BrokerClients:
        """
        Clients, which the caller closes.

        @param brokerIds: brokers to wait for, within the retry policy.
        @raise NoBrokersError: a broker stayed away.
        @raise ZookeeperError: ZooKeeper cannot be read, and a broker is not known from before.
        """
        wanted = set(brokerIds)
        for _isLast in self._policy.attempts():
            self._readAddresses(wanted)
            if wanted.issubset(self._addresses):
                return BrokerClients(self._addresses, self._options, self._policy)
        missing = min(wanted.difference(self._addresses))
        known = ", ".join(map(str, sorted(self._addresses))) or "none"
        raise NoBrokersError(
            f"there is no broker {missing} after {self._policy.retryCount + 1} attempts;"
            f" the brokers are {known}"
        )

    def _readAddresses(self, wanted: set[int]) -> None:
        """
        Without ZooKeeper the last known addresses stay in use: a broker that has moved does not
        answer there.
        """
        try:
            self._addresses = self._metadata.brokers()
        except ZookeeperError as error:
            if not wanted.issubset(self._addresses):
                raise
            log.warning("Cannot read ZooKeeper; the last known addresses are used: %s", error)


def findPartitions(metadata: IClusterMetadata, selection: Selection) -> list[PartitionId]:
    """
    The partitions of a selection as they are now, sorted.

    @raise NoBrokersError: no broker has a topic that is named.
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
        names = [name for name in metadata.topics() if matches(name)]
    found: list[PartitionId] = []
    for topic in sorted(names):
        partitions = metadata.partitions(topic)
        if not partitions and not selection.pattern:
            raise NoBrokersError(f"no broker has topic {topic}")
        found += [PartitionId(topic, partition) for partition in partitions]
    return found


def isSelected(selection: Selection, partition: PartitionId) -> bool:
    """Whether a selection includes a partition, whether or not a broker has it."""
    if selection.assigned is not None:
        return partition.partition in selection.assigned.get(partition.topic, ())
    if selection.pattern:
        return TopicPattern(selection.pattern).matches(partition.topic)
    return partition.topic in selection.topics
