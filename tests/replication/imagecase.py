"""
Metadata images for tests of what the controller decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.metadataimage import (
    TOPIC,
    BrokerShutdownRecord,
    ConfigRecord,
    FenceBrokerRecord,
    MetadataImage,
    PartitionImage,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
)
from pylogbroker.replication.controller import settle

TOPIC_ID = UUID(int=7)


class ImageCase(SynchronousTestCase):
    """
    A topic of one partition, and brokers whose epochs are ten times their ids.

    @ivar image: changed by C{apply}.
    """

    def build(
        self,
        partition: PartitionImage,
        *,
        brokers: Iterable[int] = (1, 2, 3, 4),
        fenced: Iterable[int] = (),
        stopping: Iterable[int] = (),
        **configs: str,
    ) -> None:
        self.image = MetadataImage()
        for brokerId in brokers:
            self.image.apply(self.registration(brokerId, 10 * brokerId))
        for brokerId in fenced:
            self.image.apply(FenceBrokerRecord(brokerId, 10 * brokerId))
        for brokerId in stopping:
            self.image.apply(BrokerShutdownRecord(brokerId, 10 * brokerId))
        self.image.apply(TopicRecord("logs", str(TOPIC_ID), 1))
        for name, value in configs.items():
            self.configure(name, value)
        self.image.apply(partition.record(TOPIC_ID, 0))

    def configure(self, name: str, value: str | None) -> None:
        self.image.apply(self.config(name, value))

    def config(self, name: str, value: str | None) -> ConfigRecord:
        return ConfigRecord(TOPIC, str(TOPIC_ID), name.replace("_", "."), value)

    def registration(self, brokerId: int, epoch: int) -> RegisterBrokerRecord:
        return RegisterBrokerRecord(brokerId, epoch, [["PLAINTEXT", "h", 9092, "PLAINTEXT"]], None)

    @property
    def partition(self) -> PartitionImage:
        return self.image.topicsById[TOPIC_ID].partitions[0]

    def apply(self, records: Sequence[Record]) -> PartitionImage:
        """
        Apply records one by one. After each of them a new controller would come to a state that
        needs nothing more.
        """
        for record in records:
            self.image.apply(record)
            rest = self.image.copy()
            for each in settle(rest):
                rest.apply(each)
            self.assertEqual(settle(rest), [])
        self.assertEqual(settle(self.image), [])
        return self.partition
