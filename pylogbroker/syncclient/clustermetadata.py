"""
Who is there, for programs without Twisted: the brokers of a cluster and the partitions of a topic, each time as they are now.

Nothing is watched and nothing is kept: who asks gets what ZooKeeper says in this moment, or what the listed brokers say themselves. That is what a plan
needs, which is made once and then carried out; a client that lives long has L{pylogbroker.client.discovery}.

Every wait ends. Garbage in one znode costs a line in the log and hides that broker or topic alone, as it does in the other discovery.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Protocol

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from pylogbroker.cluster.paths import (
    BROKER_IDS,
    BROKER_TOPICS,
    brokerId,
    pathSegment,
    topic,
    topicBroker,
)
from pylogbroker.cluster.znodes import decodeBroker, decodeNumber, encodeNumber
from pylogbroker.config.producersettings import BrokerAddress, BrokerList
from pylogbroker.errors import (
    ConfigurationError,
    InvalidNameError,
    NoNodeException,
    RemoteOffsetOutOfRangeError,
    RemotePartitionError,
    ZnodeError,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.types import BrokerPartition

READABLE = "readable"
_ACLS = {
    READABLE: CREATOR_ALL_ACL + READ_ACL_UNSAFE,
    "private": CREATOR_ALL_ACL,
    "open": OPEN_ACL_UNSAFE,
}
"""As of L{pylogbroker.zookeeper.client}, which has an event loop, and is on the same floor."""

TIMEOUT_MS = 10_000
PARTITION_COUNT_MAX = 100_000
"""More partitions on one broker than that is garbage."""

log = logging.getLogger(__name__)


class IClusterMetadata(Protocol):
    """
    A look at a cluster. A context manager: leaving it closes it.
    """

    def brokers(self) -> dict[int, BrokerAddress]:
        """Those that are registered, or listed, by number."""
        ...

    def topics(self) -> list[str]:
        """All there are, sorted; L{ConfigurationError} where nobody knows."""
        ...

    def partitions(self, name: str) -> list[BrokerPartition]:
        """A topic's partitions, sorted by broker and number; none, if nobody has it."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...

    def __enter__(self) -> IClusterMetadata: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class _View:
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held."""


class ZookeeperMetadata(_View):
    """
    What the registries in ZooKeeper say (spec-0.7 zookeeper §1). It connects when it is first asked.

    Both the brokers and their topics are ephemeral nodes: a broker whose session is over has left no trace, and a topic looks as if it had
    only the other brokers' partitions. Who must know names the partitions that it expects.

    All calls raise L{ZookeeperTimeoutException} when there is no answer in time, L{NoNodeException} when there is no such chroot, and L{ZookeeperError} when
    ZooKeeper refuses.
    """

    def __init__(
        self, servers: str, *, digest: str = "", acl: str = READABLE, timeoutMs: float = TIMEOUT_MS
    ) -> None:
        """
        @param servers: C{host:port[,host:port…][/chroot]}.
        @param digest: C{user:password}; empty for none.
        @param acl: with C{digest}, who but this user may use the nodes that are created: C{"readable"}, C{"private"} or C{"open"}.
        @param timeoutMs: for connecting, and for each answer.
        """
        self._servers = servers
        self._digest = digest
        self._acls = _ACLS[acl] if digest else OPEN_ACL_UNSAFE
        self._timeoutMs = timeoutMs
        self._client: Any = None

    def __repr__(self) -> str:
        return f"<ZookeeperMetadata of {self._servers}>"

    def __enter__(self) -> ZookeeperMetadata:
        return self

    def close(self) -> None:
        """Disconnect. The next call connects again."""
        client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    def brokers(self) -> dict[int, BrokerAddress]:
        """See L{IClusterMetadata.brokers}."""
        found = {}
        for number in self._numbers(BROKER_IDS):
            path = brokerId(number)
            try:
                _creator, host, port = decodeBroker(path, self._get(path))
            except NoNodeException:
                continue  # it left meanwhile
            except ZnodeError as error:
                log.warning("Broker %d cannot be used: %s", number, error)
            else:
                found[number] = BrokerAddress(number, host, port)
        return found

    def topics(self) -> list[str]:
        """See L{IClusterMetadata.topics}."""
        found = []
        for name in sorted(self._children(BROKER_TOPICS)):
            try:
                found.append(pathSegment("topic", name))
            except InvalidNameError as error:
                log.warning("A topic in ZooKeeper is left alone: %s", error)
        return found

    def partitions(self, name: str) -> list[BrokerPartition]:
        """
        See L{IClusterMetadata.partitions}.

        @raise InvalidNameError: it is no topic's name.
        """
        counts = {
            number: self._count(topicBroker(name, number)) for number in self._numbers(topic(name))
        }
        return [
            BrokerPartition(number, partition)
            for number, count in sorted(counts.items())
            for partition in range(count)
        ]

    def number(self, path: str) -> int | None:
        """
        What somebody keeps there; L{None}: nothing.

        @raise ZnodeError: it is no number.
        """
        try:
            return decodeNumber(path, self._get(path))
        except NoNodeException:
            return None

    def storeNumber(self, path: str, number: int) -> None:
        """Keep a number, in place of what is there."""
        data = encodeNumber(number)
        self._ask(path, lambda client: client.ensure_path_async(path))
        self._ask(path, lambda client: client.set_async(path, data))

    def _count(self, path: str) -> int:
        try:
            count = decodeNumber(path, self._get(path))
            if not 0 <= count <= PARTITION_COUNT_MAX:
                raise ZnodeError(
                    path, str(count), f"a number of partitions is from 0 to {PARTITION_COUNT_MAX}"
                )
        except NoNodeException:
            return 0
        except ZnodeError as error:
            log.warning("A broker's partitions cannot be used: %s", error)
            return 0
        return count

    def _numbers(self, path: str) -> list[int]:
        """The children that are numbers of brokers."""
        names = self._children(path)
        numbers = [
            int(name)
            for name in names
            if name.isascii() and name.isdigit() and str(int(name[:19])) == name
        ]
        if len(numbers) < len(names):
            log.warning(
                "%s has children that are not numbers of brokers; they are left alone", path
            )
        return sorted(numbers)

    def _children(self, path: str) -> list[str]:
        self._connected()
        try:
            return list(self._ask(path, lambda client: client.get_children_async(path)))
        except NoNodeException:
            return []

    def _get(self, path: str) -> bytes:
        data, _stat = self._ask(path, lambda client: client.get_async(path))
        return bytes(data or b"")

    def _ask(self, path: str, begin: Callable[[Any], Any]) -> Any:
        client = self._connected()
        try:
            return begin(client).get(timeout=self._timeoutMs / 1000)
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
            if not self._ask("/", lambda connected: connected.exists_async("/")):
                self.close()
                raise NoNodeException(f"the chroot of {self._servers} does not exist")
        return self._client


class StaticMetadata(_View):
    """
    A list of brokers, each of which is asked which partitions it has. Which topics there are nobody can say (the protocol has no such question).

    C{partitions} raises L{pylogbroker.errors.BrokerConnectionError} when one of them cannot be asked: without it the answer would not be whole.
    """

    def __init__(
        self,
        addresses: Iterable[BrokerAddress],
        *,
        consumer: Callable[[BrokerAddress], SimpleConsumer] | None = None,
    ) -> None:
        """
        @param consumer: makes a client for a broker.
        """
        self._addresses = {address.brokerId: address for address in addresses}
        self._makeConsumer = consumer or (
            lambda address: SimpleConsumer(address.host, address.port)
        )

    def __repr__(self) -> str:
        return f"<StaticMetadata of {len(self._addresses)} brokers>"

    def __enter__(self) -> StaticMetadata:
        return self

    def brokers(self) -> dict[int, BrokerAddress]:
        """See L{IClusterMetadata.brokers}."""
        return dict(self._addresses)

    def topics(self) -> list[str]:
        """
        @raise ConfigurationError: always.
        """
        raise ConfigurationError(
            "a list of brokers does not tell which topics there are: name them, or give ZooKeeper's address"
        )

    def partitions(self, name: str) -> list[BrokerPartition]:
        """See L{IClusterMetadata.partitions}. A broker that does not have the topic would create so many partitions of it."""
        found = []
        for number, address in sorted(self._addresses.items()):
            with self._makeConsumer(address) as consumer:
                found += [
                    BrokerPartition(number, partition)
                    for partition in range(_partitionCount(consumer, name))
                ]
        return found


def _partitionCount(consumer: SimpleConsumer, name: str) -> int:
    """A fetch of nothing tells whether there is one (spec-0.7 wire-protocol §7.1)."""
    for partition in range(PARTITION_COUNT_MAX):
        error = consumer.fetch(name, partition, 0, 0).error
        if isinstance(error, RemotePartitionError):
            return partition
        if error is not None and not isinstance(error, RemoteOffsetOutOfRangeError):
            raise error
    return PARTITION_COUNT_MAX


def parseBrokers(text: str) -> tuple[BrokerAddress, ...]:
    """
    @param text: C{id:host:port,…}, or C{host:port,…}, whose numbers are then 0, 1, 2 …
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
