"""
The brokers of a cluster and the partitions of a topic, for programs without Twisted.

Nothing is watched or kept: each call reads what ZooKeeper, or the listed brokers, say now. That
suits a plan that is made once and carried out; a client that lives long has
L{pylogbroker.client.discovery}. What the nodes mean is in L{pylogbroker.cluster.metadata}. Every
wait ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from pylogbroker.cluster import metadata
from pylogbroker.cluster.metadata import GetData, Node, Query, ReportInvalidName, ZnodeWarnings
from pylogbroker.cluster.paths import pathSegment
from pylogbroker.cluster.znodes import PARTITION_COUNT_MAX, decodeNumber, encodeNumber
from pylogbroker.config.propertytypes import BrokerAddress, BrokerList
from pylogbroker.errors import (
    ConfigurationError,
    NoNodeException,
    RemoteOffsetOutOfRangeError,
    RemotePartitionError,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.types import BrokerPartition
from pylogbroker.zookeeper import IN_FLIGHT_COUNT_MAX, READABLE, accessControl

T = TypeVar("T")

TIMEOUT_MS = 10_000

log = logging.getLogger(__name__)


class IClusterMetadata(Protocol):
    """The brokers and partitions of a cluster. A context manager: leaving it closes it."""

    def brokers(self) -> dict[int, BrokerAddress]:
        """The registered, or listed, brokers by number."""
        ...

    def topics(self) -> list[str]:
        """All topics, sorted; L{ConfigurationError} when they cannot be known."""
        ...

    def partitions(self, name: str) -> list[BrokerPartition]:
        """A topic's partitions, sorted."""
        ...

    def close(self) -> None:
        """Close connections, if there are any."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class ZookeeperMetadata(IClusterMetadata):
    """
    The metadata in ZooKeeper (spec-0.7 zookeeper §1). It connects for the first call.

    Brokers and their topics are ephemeral nodes: a broker whose session is over leaves no trace,
    and a topic seems to have only the partitions of the others. A caller that must know names the
    partitions that it expects.

    All calls raise L{ZookeeperTimeoutException} without an answer in time, L{NoNodeException}
    without the chroot, and L{ZookeeperError} when ZooKeeper refuses.
    """

    def __init__(
        self, servers: str, *, digest: str = "", acl: str = READABLE, timeoutMs: float = TIMEOUT_MS
    ) -> None:
        """
        @param servers: C{host:port[,host:port…][/chroot]}.
        @param digest: C{user:password}; empty for none.
        @param acl: with C{digest}, who else may use the nodes that are created: C{"readable"},
            C{"private"} or C{"open"}.
        @param timeoutMs: for connecting, and for each answer.
        """
        self._servers = servers
        self._digest = digest
        self._acls = accessControl(digest, acl)
        self._timeoutMs = timeoutMs
        self._client: Any = None
        self._warnings = ZnodeWarnings(partial(log.warning, "Ignored in ZooKeeper: %s"))

    def __repr__(self) -> str:
        return f"<ZookeeperMetadata of {self._servers}>"

    def close(self) -> None:
        """Disconnect. The next call connects again."""
        client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    def brokers(self) -> dict[int, BrokerAddress]:
        """See L{IClusterMetadata.brokers}."""
        return {
            number: BrokerAddress(number, found.host, found.port)
            for number, found in self.read(metadata.brokers()).items()
        }

    def topics(self) -> list[str]:
        """See L{IClusterMetadata.topics}."""
        return self.read(metadata.topics())

    def partitions(self, name: str) -> list[BrokerPartition]:
        """
        See L{IClusterMetadata.partitions}.

        @raise InvalidNameError: the name is not valid.
        """
        pathSegment("topic", name)
        return [partition for _topic, partition in self.read(metadata.partitions([name]))]

    def read(self, query: Query[T]) -> T:
        """Carry out a query of L{pylogbroker.cluster.metadata}."""
        found: Any = None
        try:
            while True:
                found = self._nodes(query.send(found))
        except StopIteration as end:
            result: T = end.value
            return result

    def _nodes(self, nodes: Sequence[Node]) -> list[Any]:
        client, found = self._connected(), []
        for start in range(0, len(nodes), IN_FLIGHT_COUNT_MAX):
            some = nodes[start : start + IN_FLIGHT_COUNT_MAX]
            begun = [self._begin(client, node) for node in some]
            found += [finish() for finish in begun]
        return found

    def _begin(self, client: Any, node: Node) -> Callable[[], Any]:
        """Request a node. Returns a function that waits for its content and decodes it."""
        if isinstance(node, ReportInvalidName):
            return partial(node.absent, self._warnings)
        isData = isinstance(node, GetData)
        result = (client.get_async if isData else client.get_children_async)(node.path)

        def finish() -> Any:
            try:
                content = self._got(node.path, result)
            except NoNodeException:
                return node.absent(self._warnings)
            return node.decoded(content[0] if isData else content, self._warnings)

        return finish

    def number(self, path: str) -> int | None:
        """
        The number in a node; L{None} when it does not exist.

        @raise ZnodeError: it is no number.
        """
        try:
            return decodeNumber(path, self._got(path, self._connected().get_async(path))[0])
        except NoNodeException:
            return None

    def storeNumber(self, path: str, number: int) -> None:
        """Set the number in a node, which is created if need be."""
        client = self._connected()
        self._got(path, client.ensure_path_async(path))
        self._got(path, client.set_async(path, encodeNumber(number)))

    def _got(self, path: str, result: Any) -> Any:
        try:
            return result.get(timeout=self._timeoutMs / 1000)
        except kazoo.NoNodeError as error:
            raise NoNodeException(f"{path}: there is no such node") from error
        except KazooTimeoutError as error:
            raise ZookeeperTimeoutException(
                f"{path}: {self._servers} did not answer within {self._timeoutMs:.0f} ms"
            ) from error
        except kazoo.KazooException as error:
            raise ZookeeperError(f"{path}: {self._servers} refused: {error!r}") from error

    def _connected(self) -> Any:
        if self._client is None:
            try:
                client = KazooClient(
                    hosts=self._servers,
                    auth_data=[("digest", self._digest)] if self._digest else None,
                    default_acl=self._acls,
                )
            except Exception as error:  # whatever a parser raises on foreign text
                raise ConfigurationError(f"zookeeper={self._servers}: {error}") from error
            try:
                client.start(self._timeoutMs / 1000)
            except KazooTimeoutError as error:
                client.close()
                raise ZookeeperTimeoutException(
                    f"no connection to ZooKeeper at {self._servers} within {self._timeoutMs:.0f} ms"
                ) from error
            self._client = client
            if not self._got("/", client.exists_async("/")):
                self.close()
                raise NoNodeException(f"the chroot of {self._servers} does not exist")
        return self._client


class StaticMetadata(IClusterMetadata):
    """
    The metadata that listed brokers give themselves. The protocol cannot ask for all topics.

    C{partitions} raises L{pylogbroker.errors.BrokerConnectionError} when one of the brokers does
    not answer, since the result would not be complete.
    """

    def __init__(
        self,
        addresses: Iterable[BrokerAddress],
        *,
        consumer: Callable[[BrokerAddress], SimpleConsumer] | None = None,
    ) -> None:
        """@param consumer: makes a client for a broker."""
        self._addresses = {address.brokerId: address for address in addresses}
        self._makeConsumer = consumer or (
            lambda address: SimpleConsumer(address.host, address.port)
        )

    def __repr__(self) -> str:
        return f"<StaticMetadata of {len(self._addresses)} brokers>"

    def brokers(self) -> dict[int, BrokerAddress]:
        """See L{IClusterMetadata.brokers}."""
        return dict(self._addresses)

    def topics(self) -> list[str]:
        """
        @raise ConfigurationError: always.
        """
        raise ConfigurationError(
            "a list of brokers does not tell which topics there are: name them, or give "
            "ZooKeeper's address"
        )

    def partitions(self, name: str) -> list[BrokerPartition]:
        """
        See L{IClusterMetadata.partitions}. A broker that does not have the topic counts with as
        many partitions as it would create.
        """
        found = []
        for number, address in sorted(self._addresses.items()):
            with self._makeConsumer(address) as consumer:
                found += [
                    BrokerPartition(number, partition)
                    for partition in range(_partitionCount(consumer, name))
                ]
        return found


def _partitionCount(consumer: SimpleConsumer, name: str) -> int:
    """Find the count with empty fetches (spec-0.7 wire-protocol §7.1)."""
    for partition in range(PARTITION_COUNT_MAX):
        error = consumer.fetch(name, partition, 0, 0).error
        if isinstance(error, RemotePartitionError):
            return partition
        if error is not None and not isinstance(error, RemoteOffsetOutOfRangeError):
            raise error
    return PARTITION_COUNT_MAX


def parseBrokers(text: str) -> tuple[BrokerAddress, ...]:
    """
    @param text: C{id:host:port,…}, or C{host:port,…}, which get the numbers 0, 1, 2 …
    @raise ConfigurationError: it is neither.
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if entries and all(entry.count(":") == 1 for entry in entries):
        entries = [f"{number}:{entry}" for number, entry in enumerate(entries)]

    def refuse(half: str) -> None:
        raise ValueError(half)

    try:
        found = BrokerList().parse(",".join(entries), refuse)
    except ValueError as error:
        raise ConfigurationError(f"brokers={text}: {error}") from error
    if not found:
        raise ConfigurationError(
            "brokers: there are none; id:host:port,… or host:port,… would be right"
        )
    return found
