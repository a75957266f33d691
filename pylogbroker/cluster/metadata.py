"""
The brokers, topics, partitions and consumer groups in a cluster's ZooKeeper nodes (spec-0.7
zookeeper §1, §4).

A query is a generator: it yields the nodes to read concurrently, receives their contents, and
returns a value. It does no input or output. L{pylogbroker.client.clustermetadata} answers queries
with Deferreds, L{pylogbroker.syncclient.clustermetadata} in threads.

What must be true: a node may hold anything. An unusable node counts as absent and hides no other
node; L{ZnodeWarnings} reports it. A missing node, also one that goes while it is read, is no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from pylogbroker.cluster import paths
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import ISubscription, decodeSubscription
from pylogbroker.cluster.znodes import (
    BrokerRegistration,
    decodeBroker,
    decodeBrokerNumber,
    decodeCount,
    decodeNumber,
    decodePartition,
    decodeText,
    decodeTopic,
)
from pylogbroker.errors import InvalidNameError, PylogbrokerError, ZnodeError
from pylogbroker.types import BrokerPartition, PartitionId

K = TypeVar("K")
T = TypeVar("T")

WARNING_COUNT_MAX = 1_000
"""Nodes that one reader reports at a time."""


class ZnodeWarnings:
    """
    Reports each unusable node once, until its content changes. Watches make readers see the same
    nodes again and again.
    """

    def __init__(self, warn: Callable[[str], object]) -> None:
        """
        @param warn: called with a text that names the node, its value and what would be right.
        """
        self._warn = warn
        self._texts: dict[str, str] = {}

    def warnOnce(self, path: str, error: PylogbrokerError) -> None:
        """
        Report a node, unless reported with the same text. Reports at most L{WARNING_COUNT_MAX}
        nodes.
        """
        text = str(error)
        if self._texts.get(path) != text and (
            path in self._texts or len(self._texts) < WARNING_COUNT_MAX
        ):
            self._texts[path] = text
            self._warn(text)

    def clear(self, path: str) -> None:
        """Forget a usable or deleted node."""
        self._texts.pop(path, None)

    def retainChildren(self, path: str, names: Iterable[str]) -> None:
        """Forget the nodes below a path that are not under one of its present children."""
        if not self._texts:
            return
        prefix, present = f"{path}/", set(names)
        for each in [
            each
            for each in self._texts
            if each.startswith(prefix) and each[len(prefix) :].partition("/")[0] not in present
        ]:
            del self._texts[each]


class GetChildren(NamedTuple, Generic[T]):
    """
    A request for the names of a node's children.

    @ivar decode: makes a value of a path and a name; raises L{ZnodeError}.
    """

    path: str
    decode: Callable[[str, str], T]

    def decoded(self, names: Iterable[str], warnings: ZnodeWarnings) -> list[T]:
        names = list(names)
        warnings.retainChildren(self.path, names)
        found = []
        for name in names:
            path = f"{self.path}/{name}"
            try:
                found.append(self.decode(path, name))
            except ZnodeError as error:
                warnings.warnOnce(path, error)
        return found

    def absent(self, warnings: ZnodeWarnings) -> list[T]:
        warnings.retainChildren(self.path, ())
        return []


class GetData(NamedTuple, Generic[T]):
    """
    A request for a node's data.

    @ivar decode: makes a value of a path and data; raises L{ZnodeError}.
    """

    path: str
    decode: Callable[[str, bytes | None], T]

    def decoded(self, data: bytes | None, warnings: ZnodeWarnings) -> T | None:
        try:
            found = self.decode(self.path, data)
        except ZnodeError as error:
            warnings.warnOnce(self.path, error)
            return None
        warnings.clear(self.path)
        return found

    def absent(self, warnings: ZnodeWarnings) -> T | None:
        warnings.clear(self.path)
        return None


class ReportInvalidName(NamedTuple):
    """A request that reads nothing and reports why a name has no path."""

    path: str
    error: PylogbrokerError

    def absent(self, warnings: ZnodeWarnings) -> list[Any]:
        warnings.warnOnce(self.path, self.error)
        return []


Node = GetChildren[Any] | GetData[Any] | ReportInvalidName

Query = Generator[Sequence[Node], list[Any], T]
"""Yields nodes to read side by side, is sent a list of what they hold, and returns a T."""


class MemberRegistration(NamedTuple):
    """
    A member of a consumer group.

    @ivar text: its registration, for people.
    @ivar subscription: the decoded registration.
    """

    text: str
    subscription: ISubscription


def brokers(countMax: int | None = None) -> Query[dict[int, BrokerRegistration]]:
    """
    The registered brokers, by number.

    @param countMax: by default all.
    """
    (numbers,) = yield [GetChildren(paths.BROKER_IDS, decodeBrokerNumber)]
    numbers = sorted(numbers)[:countMax]
    return _present(
        numbers, (yield [GetData(paths.brokerId(each), decodeBroker) for each in numbers])
    )


def topics() -> Query[list[str]]:
    """The names of all topics, sorted."""
    (names,) = yield [GetChildren(paths.BROKER_TOPICS, decodeTopic)]
    return sorted(names)


def partitionCounts(topics: Iterable[str]) -> Query[dict[str, dict[int, int]]]:
    """
    The partition count of each topic on each broker that ever had it, by topic and broker number.
    An invalid name is reported, and has none.
    """
    names = list(topics)
    children = yield [topicBrokers(name) for name in names]
    keys = [
        (name, number)
        for name, numbers in zip(names, children, strict=True)
        for number in sorted(numbers)
    ]
    found = yield [GetData(paths.topicBroker(*key), decodeCount) for key in keys]
    counts: dict[str, dict[int, int]] = {name: {} for name in names}
    for (name, number), count in _present(keys, found).items():
        counts[name][number] = count
    return counts


def topicBrokers(topic: str) -> Node:
    """The request for the numbers of the brokers that ever had a topic."""
    try:
        return GetChildren(paths.topic(topic), decodeBrokerNumber)
    except InvalidNameError as error:
        return ReportInvalidName(f"{paths.BROKER_TOPICS}/{topic}", error)


def partitions(topics: Iterable[str]) -> Query[list[PartitionId]]:
    """
    The partitions of topics, by topic, broker number and partition number; see L{partitionCounts}.
    """
    counts = yield from partitionCounts(topics)
    return [
        PartitionId(topic, BrokerPartition(broker, partition))
        for topic, byBroker in counts.items()
        for broker, count in byBroker.items()
        for partition in range(count)
    ]


def groups() -> Query[list[str]]:
    """The names of all consumer groups, sorted."""
    (names,) = yield [GetChildren(paths.CONSUMERS, _name)]
    return sorted(names)


def members(group: GroupPaths) -> Query[dict[str, MemberRegistration]]:
    """A group's members by id, sorted, without unusable registrations."""
    (names,) = yield [GetChildren(group.ids, _name)]
    names.sort()
    return _present(
        names, (yield [GetData(f"{group.ids}/{name}", _decodeMember) for name in names])
    )


def owners(group: GroupPaths, countMax: int | None = None) -> Query[dict[PartitionId, str]]:
    """
    The thread that owns each partition, by partition.

    @param countMax: by default all.
    """
    return (yield from _byPartition(group.owners, decodeText, countMax))


def offsets(group: GroupPaths, countMax: int | None = None) -> Query[dict[PartitionId, int]]:
    """The committed offset of each partition, by partition; see L{owners}."""
    return (yield from _byPartition(group.offsets, decodeNumber, countMax))


def _byPartition(
    root: str, decode: Callable[[str, bytes | None], T], countMax: int | None
) -> Query[dict[PartitionId, T]]:
    (topics,) = yield [GetChildren(root, _name)]
    topics = sorted(topics)[:countMax]
    children = yield [GetChildren(f"{root}/{topic}", _partitionNode) for topic in topics]
    nodes = {
        PartitionId(topic, partition): path
        for topic, found in zip(topics, children, strict=True)
        for partition, path in found
    }
    keys = sorted(nodes)[:countMax]
    return _present(keys, (yield [GetData(nodes[key], decode) for key in keys]))


def _name(path: str, name: str) -> str:
    return name


def _partitionNode(path: str, name: str) -> tuple[BrokerPartition, str]:
    return decodePartition(path, name), path


def _decodeMember(path: str, data: bytes | None) -> MemberRegistration:
    return MemberRegistration(decodeText(path, data), decodeSubscription(path, data))


def _present(keys: Iterable[K], values: Iterable[T | None]) -> dict[K, T]:
    return {key: value for key, value in zip(keys, values, strict=True) if value is not None}
