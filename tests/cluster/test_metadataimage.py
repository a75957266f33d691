"""The metadata of today's protocol, and its records."""

from __future__ import annotations

from random import Random
from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.metadataimage import (
    BROKER,
    CLUSTER_DEFAULT,
    GROUP,
    TOPIC,
    AclRecord,
    BrokerShutdownRecord,
    ClusterRecord,
    ConfigRecord,
    Endpoint,
    FenceBrokerRecord,
    MetadataImage,
    PartitionCountRecord,
    PartitionImage,
    ProducerIdsRecord,
    QuotaRecord,
    Record,
    RegisterBrokerRecord,
    RemoveAclRecord,
    RemoveScramCredentialRecord,
    RemoveTopicRecord,
    ReplicasRemovedRecord,
    ScramCredential,
    ScramCredentialRecord,
    TopicRecord,
    TopicRemovalCompletedRecord,
    UnregisterBrokerRecord,
    decodeRecords,
    encodeRecords,
)
from pylogbroker.errors import MetadataError

ACL = AclRecord(2, 3, "orders", "User:alice", "*", 3, 3)
FIRST, SECOND = str(UUID(int=1)), str(UUID(int=2))
RECORDS: list[Record] = [
    ClusterRecord("AAAAAAAAAAAAAAAAAAAAAA"),
    TopicRecord("orders", FIRST, 3),
    TopicRecord("clicks", SECOND, 1),
    ConfigRecord(TOPIC, FIRST, "retention.ms", "1000"),
    ConfigRecord(CLUSTER_DEFAULT, "", "log.retention.ms", "7"),
    ConfigRecord(BROKER, "0", "log.retention.ms", "8"),
    ConfigRecord(GROUP, "g", "consumer.session.timeout.ms", "50000"),
    ProducerIdsRecord(1000),
    ACL,
    ScramCredentialRecord("alice", 1, "c2FsdA==", "a2V5", "c2VydmVy", 4096),
    ScramCredentialRecord("alice", 2, "", "a2V5", "c2VydmVy", 8192),
    QuotaRecord({"user": "u", "client-id": None}, "producer_byte_rate", 5.0),
]


def imageOf(records: list[Record]) -> MetadataImage:
    image = MetadataImage()
    for record in records:
        image.apply(record)
    return image


class ImageTests(SynchronousTestCase):
    """L{MetadataImage}."""

    def test_recordsMakeTheImage(self) -> None:
        """Topics are found by name and by id, with their settings."""
        image = imageOf(RECORDS)
        orders = image.topics["orders"]
        self.assertIs(image.topicsById[UUID(FIRST)], orders)
        self.assertEqual((orders.partitionCount, orders.configs), (3, {"retention.ms": "1000"}))
        self.assertEqual(image.brokerConfigs["0"], {"log.retention.ms": "8"})
        self.assertEqual((image.clusterId, image.nextProducerId), ("A" * 22, 1000))

    def test_recordsOfAnImage(self) -> None:
        """An image's own records make it again, also after changes that took something back."""
        image = imageOf(
            [
                *RECORDS,
                PartitionCountRecord(FIRST, 4),
                ConfigRecord(TOPIC, FIRST, "retention.ms", None),
                ConfigRecord(TOPIC, FIRST, "segment.ms", "5"),
                RemoveTopicRecord(SECOND),
            ]
        )
        again = imageOf(decodeRecords(encodeRecords(list(image.records()))))
        self.assertEqual(vars(again), vars(image))
        self.assertEqual(list(again.topics), ["orders"])
        self.assertEqual(again.removing, {UUID(SECOND): "clicks"})
        again.apply(TopicRemovalCompletedRecord(SECOND))
        self.assertEqual(again.removing, {})
        self.assertEqual(again.topics["orders"].configs, {"segment.ms": "5"})

    def test_removalByEachBroker(self) -> None:
        """
        A topic with replicas is removed when each broker that had one says so, or is unregistered.
        Its name is free before.
        """
        part = PartitionImage(2, 0, 0, (2, 1), (2, 1))
        image = imageOf(
            [
                *RECORDS,
                *(RegisterBrokerRecord(each, each, [], None) for each in (1, 2, 3)),
                PartitionCountRecord(SECOND, 2),
                *(part._replace(replicas=(2, 3)).record(UUID(SECOND), each) for each in (0, 1)),
                part.record(UUID(SECOND), 0)._replace(partitionEpoch=1),
                RemoveTopicRecord(SECOND),
                RemoveTopicRecord(FIRST),
            ]
        )
        self.assertEqual(image.removingBrokers, {UUID(SECOND): {1, 2, 3}})
        self.assertTrue(image.isTaken("orders"))
        self.assertFalse(image.isTaken("clicks"))
        copy = image.copy()
        copy.apply(TopicRecord("clicks", str(UUID(int=9)), 1))
        self.assertTrue(copy.isTaken("clicks"))
        copy.apply(ReplicasRemovedRecord(SECOND, 1))
        again = imageOf(decodeRecords(encodeRecords(list(copy.records()))))
        self.assertEqual(list(again.records()), list(copy.records()))
        self.assertEqual(again.removing, copy.removing)
        self.assertEqual(again.removingBrokers, {UUID(SECOND): {2, 3}})
        for topicId in (SECOND, FIRST):
            self.assertRaises(MetadataError, again.apply, ReplicasRemovedRecord(topicId, 1))
        again.apply(ReplicasRemovedRecord(SECOND, 2))
        self.assertEqual(list(again.removing.values()), ["clicks", "orders"])
        again.apply(FenceBrokerRecord(3, 3))
        again.apply(UnregisterBrokerRecord(3))
        self.assertEqual((again.removingBrokers, list(again.removing.values())), ({}, ["orders"]))
        self.assertEqual(len(image.removingBrokers[UUID(SECOND)]), 3)
        image.apply(TopicRemovalCompletedRecord(SECOND))
        self.assertEqual(image.removingBrokers, {})

    def test_groups(self) -> None:
        """A group without settings is none of those that have some."""
        image = imageOf(RECORDS)
        name = "consumer.session.timeout.ms"
        self.assertEqual(image.groupConfigs, {"g": {name: "50000"}})
        for group in ("g", "h"):
            image.apply(ConfigRecord(GROUP, group, name, None))
        self.assertEqual(image.groupConfigs, {})

    def test_acls(self) -> None:
        """Rules come and go; a copy shares them until it changes."""
        image = imageOf(RECORDS)
        size = image.aclSize
        copy = image.copy()
        self.assertIs(copy.acls, image.acls)
        other = ACL._replace(operation=4)
        copy.apply(other)
        copy.apply(RemoveAclRecord(*ACL))
        self.assertEqual(list(map(tuple, copy.acls)), [tuple(other)])
        self.assertEqual(list(map(tuple, image.acls)), [tuple(ACL)])
        self.assertEqual((copy.aclSize, image.aclSize), (size, size))
        self.assertRaises(MetadataError, copy.apply, other)
        self.assertRaises(MetadataError, copy.apply, RemoveAclRecord(*ACL))

    def test_quotas(self) -> None:
        """Limits come, change and go; a copy shares them until it changes."""
        image = imageOf(RECORDS)
        entity = (("client-id", None), ("user", "u"))
        self.assertEqual(image.quotas, {entity: {"producer_byte_rate": 5.0}})
        size = image.quotaSize
        copy = image.copy()
        self.assertIs(copy.quotas, image.quotas)
        names = {"client-id": None, "user": "u"}
        copy.apply(QuotaRecord(names, "producer_byte_rate", 6.0))
        copy.apply(QuotaRecord(names, "request_percentage", 7.0))
        self.assertGreater(copy.quotaSize, size)
        copy.apply(QuotaRecord(names, "request_percentage", None))
        self.assertEqual(copy.quotas, {entity: {"producer_byte_rate": 6.0}})
        self.assertEqual((copy.quotaSize, image.quotaSize), (size, size))
        self.assertEqual(image.quotas, {entity: {"producer_byte_rate": 5.0}})
        copy.apply(QuotaRecord(names, "producer_byte_rate", None))
        copy.apply(QuotaRecord(names, "producer_byte_rate", None))
        self.assertEqual((copy.quotas, copy.quotaSize), ({}, 0))

    def test_copy(self) -> None:
        """A copy changes by itself."""
        image = imageOf(RECORDS)
        before = list(image.records())
        made = image.copy()
        made.apply(ConfigRecord(TOPIC, FIRST, "retention.ms", "2"))
        made.apply(ConfigRecord(BROKER, "0", "log.retention.ms", None))
        made.apply(ConfigRecord(GROUP, "g", "consumer.session.timeout.ms", "46000"))
        made.apply(RemoveTopicRecord(SECOND))
        made.apply(PartitionCountRecord(FIRST, 9))
        self.assertEqual(list(image.records()), before)
        self.assertEqual(made.topics["orders"].partitionCount, 9)
        self.assertEqual((image.partitionCount, made.partitionCount), (4, 9))

    def test_credentials(self) -> None:
        """What is kept of a password is found by user and mechanism, replaced, and removed."""
        image = imageOf(RECORDS)
        before = list(image.records())
        made = image.copy()
        old = ScramCredential(b"salt", b"key", b"server", 4096)
        new = old._replace(salt=b"other")
        self.assertEqual(image.scramCredentials["alice"][1], old)
        made.apply(new.record("alice", 1))
        made.apply(RemoveScramCredentialRecord("alice", 2))
        self.assertEqual(made.scramCredentials, {"alice": {1: new}})
        made.apply(RemoveScramCredentialRecord("alice", 1))
        self.assertEqual(made.scramCredentials, {})
        self.assertEqual(list(image.records()), before)

    def test_contradictions(self) -> None:
        """A record that contradicts an earlier one is refused, and changes nothing."""
        image = imageOf(RECORDS)
        before = list(image.records())
        contradictions: list[tuple[Record, str]] = [
            (ClusterRecord("B"), "second cluster id"),
            (TopicRecord("orders", str(UUID(int=3)), 1), "there already"),
            (TopicRecord("new", FIRST, 1), "there already"),
            (TopicRecord("new", str(UUID(int=3)), 0), "0 partitions"),
            (TopicRecord("new", "nonsense", 1), "no topic id"),
            (PartitionCountRecord(FIRST, 3), "cannot go on with 3"),
            (RemoveTopicRecord(str(UUID(int=3))), "no topic with the id"),
            (TopicRemovalCompletedRecord(FIRST), "not being removed"),
            (ConfigRecord("planet", "", "x", "y"), "unknown resource"),
            (ProducerIdsRecord(1000), "not behind"),
            (RemoveScramCredentialRecord("bob", 1), "no password for mechanism 1"),
        ]
        for record, text in contradictions:
            error = self.assertRaises(MetadataError, image.apply, record)
            self.assertIn(text, str(error))
        self.assertEqual(list(image.records()), before)

    def test_badRecords(self) -> None:
        """Bytes that are no records are refused with the reason."""
        for data, text in (
            (b"{", "no JSON"),
            (b'[{"kind":"planet"}]', "unknown kind 'planet'"),
            (b'[{"kind":"cluster"}]', "fields []"),
        ):
            self.assertIn(text, str(self.assertRaises(MetadataError, decodeRecords, data)))

    def test_brokers(self) -> None:
        """Brokers register, are about to stop, are fenced, come back, and are unregistered."""
        endpoints = [["PLAINTEXT", "one.example", 9092, "PLAINTEXT"]]
        first = RegisterBrokerRecord(1, 7, endpoints, "a")
        image = imageOf([*RECORDS, first, RegisterBrokerRecord(2, 8, endpoints, None)])
        found = image.brokers[1]
        self.assertEqual(
            (found.epoch, found.endpoints, found.rack, found.mayLead),
            (7, (Endpoint("PLAINTEXT", "one.example", 9092, "PLAINTEXT"),), "a", True),
        )
        before = list(image.records())
        for record, text in (
            (first, "cannot go on with 7"),
            (FenceBrokerRecord(1, 6), "has epoch 7, not 6"),
            (BrokerShutdownRecord(3, 7), "broker 3 has not registered"),
            (UnregisterBrokerRecord(1), "cannot be unregistered"),
        ):
            self.assertIn(text, str(self.assertRaises(MetadataError, image.apply, record)))
        self.assertEqual(list(image.records()), before)
        made = image.copy()
        made.apply(BrokerShutdownRecord(1, 7))
        self.assertFalse(made.brokers[1].mayLead)
        made.apply(FenceBrokerRecord(1, 7))
        made.apply(FenceBrokerRecord(2, 8))
        self.assertEqual(list(image.records()), before)
        again = imageOf(decodeRecords(encodeRecords(list(made.records()))))
        self.assertEqual(again.brokers, made.brokers)
        made.apply(UnregisterBrokerRecord(2))
        made.apply(first._replace(epoch=9))
        self.assertEqual([each.mayLead for each in made.brokers.values()], [True])

    def test_partitions(self) -> None:
        """Partitions of a topic come in order, and change; no epoch goes back."""
        image = imageOf(RECORDS)
        topicId = image.topics["orders"].topicId
        made = PartitionImage(1, 0, 0, (1, 2, 3), (1, 2, 3))
        image.apply(made.record(topicId, 0))
        image.apply(made._replace(replicas=(2, 3), leader=2).record(topicId, 1))
        moved = PartitionImage(2, 1, 1, (1, 2, 3), (2,), (1,), -1, (3,), (1,))
        image.apply(moved.record(topicId, 0))
        self.assertEqual(image.topics["orders"].partitions[0], moved)
        self.assertEqual(len(image.topics["orders"].partitions), 2)
        found = [image.topics["orders"].isReplicated(index) for index in range(3)]
        self.assertEqual(found, [True, True, False])
        again = imageOf(decodeRecords(encodeRecords(list(image.records()))))
        self.assertEqual(vars(again), vars(image))
        before = list(image.records())
        for changed, number, text in (
            (made, 3, "2 of 3 partitions"),
            (moved, 0, "partition epoch 1"),
            (moved._replace(partitionEpoch=2, leader=3), 0, "in epoch 1"),
            (moved._replace(partitionEpoch=2, leaderEpoch=0), 0, "in epoch 1"),
            (moved._replace(leader=9), 2, "with leader 9"),
            (moved._replace(leader=-1, replicas=()), 2, "replicas ()"),
        ):
            record = changed.record(topicId, number)
            self.assertIn(text, str(self.assertRaises(MetadataError, image.apply, record)))
        self.assertEqual(list(image.records()), before)
        none = moved._replace(leader=-1, partitionEpoch=2, lastKnownLeader=2)
        image.apply(none.record(topicId, 0))
        self.assertEqual(image.topics["orders"].partitions[0].leader, -1)

    def test_together(self) -> None:
        """Records of partitions that come together make what they make one after another."""
        made = PartitionImage(1, 0, 0, (1, 2, 3), (1, 2, 3))
        moved = made._replace(leader=2, leaderEpoch=1, partitionEpoch=1)
        one, two = UUID(FIRST), UUID(SECOND)
        records: list[Record] = [
            *RECORDS,
            made.record(one, 0),
            made.record(one, 1),
            made.record(two, 0),
            made.record(one, 2),
            moved.record(one, 1),
            ConfigRecord(TOPIC, FIRST, "retention.ms", "2000"),
            moved.record(one, 0),
        ]
        image = MetadataImage()
        image.applyAll(records)
        self.assertEqual(vars(image), vars(imageOf(records)))
        self.assertRaises(MetadataError, image.applyAll, [moved.record(one, 0)])

    def test_randomChanges(self) -> None:
        """After any changes the image's own records make it again."""
        random = Random(1)
        image = MetadataImage()
        for number in range(300):
            topics = list(image.topics.values())
            if not topics or random.random() < 0.3:
                image.apply(TopicRecord(f"t{number}", str(UUID(int=number + 9)), 1))
                continue
            topic = random.choice(topics)
            topicId = str(topic.topicId)
            changes: list[Record] = [
                RemoveTopicRecord(topicId),
                PartitionCountRecord(topicId, topic.partitionCount + 1),
                ConfigRecord(TOPIC, topicId, random.choice("ab"), random.choice("xy")),
                ConfigRecord(TOPIC, topicId, random.choice("ab"), None),
            ]
            image.apply(random.choice(changes))
        self.assertEqual(vars(imageOf(list(image.records()))), vars(image))
