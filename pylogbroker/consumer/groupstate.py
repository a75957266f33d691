"""
What one member of a group sees of the rest of the world: members, topics, brokers (spec-0.7 zookeeper §4).

What others write into ZooKeeper may be anything. It is named in the log, once, and does not stop us:

  - a member whose registration cannot be read, or whose pattern cannot be used, is taken not to be there. (0.7's members all stop at it.)
  - a broker or a count of partitions that cannot be read is taken not to be there, and so is a topic whose name no request can carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.logger import Logger

from pylogbroker.cluster import paths
from pylogbroker.cluster.subscription import ISubscription, WildcardSubscription, decodeSubscription
from pylogbroker.cluster.znodes import (
    BrokerRegistration,
    decodeBroker,
    decodeBrokerNumber,
    decodeCount,
)
from pylogbroker.consumer.childwatches import ChildWatches
from pylogbroker.consumer.rebalance import GroupState
from pylogbroker.errors import InvalidNameError, InvalidPatternError, NoNodeException, ZnodeError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.types import BrokerPartition
from pylogbroker.zookeeper.ephemeral import claim

TOPIC_SIZE_MAX = 32_767
"""Bytes of a topic's name in a request."""

_COMPLAINT_COUNT_MAX = 1_000


class GroupStateReader:
    """
    Looks around for one member.
    """

    _log = Logger()

    def __init__(
        self,
        zookeeper: IZookeeper,
        watches: ChildWatches,
        groupPaths: paths.GroupPaths,
        consumerId: str,
    ) -> None:
        """
        @param watches: armed on everything that is looked at and may change.
        """
        self._zookeeper = zookeeper
        self._watches = watches
        self._paths = groupPaths
        self._consumerId = consumerId
        self._complaints: set[str] = set()

    async def look(self, subscription: ISubscription) -> GroupState:
        """
        @param subscription: this member's own. It is registered again if somebody has deleted it.
        @raise pylogbroker.errors.ZookeeperError: ZooKeeper cannot be read.
        """
        names = (
            await self._watches.children(paths.BROKER_TOPICS)
            if isinstance(subscription, WildcardSubscription)
            else ()
        )
        wanted = [name for name in subscription.streamCounts(names) if self._isUsable(name)]
        members = await self._members(subscription)
        brokerNames = await self._watches.children(paths.BROKER_IDS)
        partitions = await gatherAll([self._partitions(name) for name in wanted])
        topics = dict(zip(wanted, partitions, strict=True))
        needed = {str(partition.broker) for found in partitions for partition in found}
        brokers = await gatherAll([self._broker(name) for name in brokerNames if name in needed])
        usable = {
            member: each
            for member, each in members.items()
            if self._isComprehensible(member, each, topics)
        }
        return GroupState(
            usable, topics, {number: broker for number, broker in brokers if broker is not None}
        )

    def _isUsable(self, topic: str) -> bool:
        try:
            paths.topic(topic)
        except InvalidNameError as error:
            self._complain(f"{error}: it is left out")
            return False
        if len(topic.encode()) > TOPIC_SIZE_MAX:
            self._complain(
                f"the topic {topic[:100]}… has a name that no request can carry: it is left out"
            )
            return False
        return True

    def _isComprehensible(
        self, member: str, subscription: ISubscription, topics: Mapping[str, Any]
    ) -> bool:
        try:
            subscription.streamCounts(topics)
        except InvalidPatternError as error:
            self._complain(
                f"{self._paths.ids}/{member}: {error}. This member is taken not to be there, and its partitions cannot be agreed upon"
            )
            return False
        return True

    async def _members(self, own: ISubscription) -> dict[str, ISubscription]:
        names = await self._watches.children(self._paths.ids)
        if self._consumerId not in names:  # somebody has deleted it
            await claim(self._zookeeper, self._paths.consumer(self._consumerId), own.encode())
            names = await self._zookeeper.get_children(self._paths.ids)
        found = await gatherAll([self._member(name, own) for name in names])
        return {
            name: subscription
            for name, subscription in zip(names, found, strict=True)
            if subscription is not None
        }

    async def _member(self, name: str, own: ISubscription) -> ISubscription | None:
        path = f"{self._paths.ids}/{name}"
        if name == self._consumerId:
            return own
        try:
            data, _stat = await self._zookeeper.get(path)
            return decodeSubscription(path, data)
        except NoNodeException:
            return None
        except ZnodeError as error:
            self._complain(f"{error}. This member is taken not to be there")
            return None

    async def _partitions(self, topic: str) -> list[BrokerPartition]:
        brokers = await self._watches.children(paths.topic(topic))
        return [
            partition
            for found in await gatherAll([self._brokerPartitions(topic, name) for name in brokers])
            for partition in found
        ]

    async def _brokerPartitions(self, topic: str, broker: str) -> list[BrokerPartition]:
        path = f"{paths.topic(topic)}/{broker}"
        try:
            number = decodeBrokerNumber(path, broker)
            data, _stat = await self._zookeeper.get(path)
            count = decodeCount(path, data)
        except NoNodeException:
            return []
        except ZnodeError as error:
            self._complain(f"{error}. It is left out")
            return []
        return [BrokerPartition(number, index) for index in range(count)]

    async def _broker(self, name: str) -> tuple[int, BrokerRegistration | None]:
        path = f"{paths.BROKER_IDS}/{name}"
        try:
            data, _stat = await self._zookeeper.get(path)
            return int(name), decodeBroker(path, data)
        except NoNodeException:
            return int(name), None
        except ZnodeError as error:
            self._complain(f"{error}. Its partitions are not read")
            return int(name), None

    def _complain(self, text: str) -> None:
        """About what somebody has written; once."""
        if text not in self._complaints and len(self._complaints) < _COMPLAINT_COUNT_MAX:
            self._complaints.add(text)
            self._log.error("{consumerId}: {text}", consumerId=self._consumerId, text=text)
