"""The metadata of Apache's controller, read as records of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.apachemetadata import readApacheMetadata
from pylogbroker.cluster.metadataimage import (
    BROKER,
    CLUSTER_DEFAULT,
    GROUP,
    TOPIC,
    AclRecord,
    ClusterRecord,
    ConfigRecord,
    ProducerIdsRecord,
    QuotaRecord,
    ScramCredential,
    TopicRecord,
)
from pylogbroker.errors import CorruptLogError, StorageError
from pylogbroker.protocol.kafka.metadatarecords import KINDS, RECORDS
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.storage.kafka.checkpoints import MetaProperties, writeMetaProperties
from pylogbroker.testing.powercut import PowerCutFileSystem

A, B = UUID(int=1), UUID(int=2)
LOG = "/log/__cluster_metadata-0"
_NUMBERS = {name: kind for kind, name in KINDS.items()}


def batch(offset: int, *records: Any) -> bytes:
    """Records in a batch, as the controller writes it."""
    found = []
    for index, each in enumerate(records):
        name = type(each).__name__
        version = 2 if name.startswith("Partition") else 0
        value = bytes((1, _NUMBERS[name], version)) + each.encode(version)
        found.append(Record(offset + index, 5, None, value))
    return encodeBatch(found, baseOffset=offset, leaderEpoch=1)


def topic(name: str, topicId: UUID, *replicas: int, isr: Sequence[int] = (1,)) -> list[Any]:
    """The records of a topic with one partition."""
    return [
        RECORDS["TopicRecord"](name=name, topicId=topicId.bytes),
        RECORDS["PartitionRecord"](
            partitionId=0, topicId=topicId.bytes, replicas=list(replicas or (1,)), isr=list(isr)
        ),
    ]


def config(kind: int, owner: str, name: str, value: str | None) -> Any:
    return RECORDS["ConfigRecord"](resourceType=kind, resourceName=owner, name=name, value=value)


class ApacheMetadataTests(SynchronousTestCase):
    """L{readApacheMetadata}."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem()
        self.files.makeDirectories(LOG)
        writeMetaProperties(self.files, "/log", MetaProperties("cluster", 1, None))
        self.reports: list[str] = []

    def write(self, name: str, *batches: bytes) -> None:
        self.files.open(f"{LOG}/{name}", create=True).writeAt(0, [b"".join(batches)])

    def log(self, *records: Any) -> None:
        self.write(f"{0:020}.log", batch(0, *records))

    def read(self, nodeId: int = 1) -> list[Any]:
        return readApacheMetadata(self.files, "/log", nodeId, self.reports.append)

    def refused(self, text: str, nodeId: int = 1) -> None:
        """The directory is refused with a text."""
        self.assertIn(text, str(self.assertRaises(StorageError, self.read, nodeId)))

    def test_all(self) -> None:
        """Topics with ids, partitions and settings, brokers' settings, producer ids."""
        second = RECORDS["PartitionRecord"](partitionId=1, topicId=A.bytes, replicas=[2], isr=[2])
        change = RECORDS["PartitionChangeRecord"]
        self.log(
            RECORDS["FeatureLevelRecord"](name="metadata.version", featureLevel=29),
            *topic("a", A),
            second,
            change(partitionId=1, topicId=A.bytes, replicas=[1, 2], isr=[]),
            change(partitionId=1, topicId=A.bytes, eligibleLeaderReplicas=[1]),
            *topic("b", B),
            config(2, "a", "retention.ms", "5"),
            config(2, "a", "segment.ms", "6"),
            config(2, "a", "retention.ms", None),
            config(4, "1", "log.retention.ms", "7"),
            config(4, "", "message.max.bytes", "8"),
            config(4, "2", "message.max.bytes", "9"),
            config(32, "g", "consumer.session.timeout.ms", "50000"),
            RECORDS["ProducerIdsRecord"](nextProducerId=2000),
        )
        self.assertEqual(
            self.read(),
            [
                ClusterRecord("cluster"),
                TopicRecord("a", str(A), 2),
                ConfigRecord(TOPIC, str(A), "segment.ms", "6"),
                TopicRecord("b", str(B), 1),
                ConfigRecord(BROKER, "1", "log.retention.ms", "7"),
                ConfigRecord(CLUSTER_DEFAULT, "", "message.max.bytes", "8"),
                ConfigRecord(GROUP, "g", "consumer.session.timeout.ms", "50000"),
                ProducerIdsRecord(2000),
            ],
        )
        self.assertEqual(self.reports, [])

    def test_removed(self) -> None:
        """A removed topic is gone with its settings; a later one of its name has none of them."""
        self.log(
            *topic("a", A),
            config(2, "a", "segment.ms", "6"),
            RECORDS["RemoveTopicRecord"](topicId=A.bytes),
            *topic("a", B),
        )
        self.assertEqual(self.read()[1:], [TopicRecord("a", str(B), 1)])

    def test_transactions(self) -> None:
        """Of the controller's transactions those with an end count."""
        begin, end = RECORDS["BeginTransactionRecord"](), RECORDS["EndTransactionRecord"]()
        self.log(
            begin,
            *topic("a", A),
            end,
            begin,
            *topic("b", B),
            RECORDS["AbortTransactionRecord"](),
            begin,
            *topic("c", UUID(int=3)),
        )
        self.assertEqual(self.read()[1:], [TopicRecord("a", str(A), 1)])

    def test_snapshot(self) -> None:
        """The newest snapshot is read, then what is behind it; a torn end is left out."""
        self.write(f"{2:020}-{1:010}.checkpoint", batch(0, *topic("old", B)))
        self.write(f"{4:020}-{1:010}.checkpoint", batch(0, *topic("a", A)))
        self.write(f"{9:020}-{1:010}.checkpoint.part", b"x")
        self.write(f"{0:020}.log", batch(0, *topic("before", UUID(int=3))))
        torn = batch(8, *topic("c", UUID(int=4)))[:-1]
        self.write(f"{2:020}.log", batch(2, *topic("x", B), *topic("b", B)), torn)
        self.assertEqual(
            self.read()[1:], [TopicRecord("a", str(A), 1), TopicRecord("b", str(B), 1)]
        )

    def test_snapshotAlone(self) -> None:
        """A snapshot needs no log, but what the log begins behind must be there."""
        self.write(f"{4:020}-{1:010}.checkpoint", batch(0, *topic("a", A)))
        self.assertEqual(len(self.read()), 2)
        self.write(f"{5:020}.log", batch(5, *topic("b", B)))
        self.refused("nothing tells what was before 5")

    def test_damaged(self) -> None:
        """A damaged snapshot, or a damaged file before the last one, is refused."""
        self.write(f"{4:020}-{1:010}.checkpoint", batch(0, *topic("a", A))[:-1])
        self.refused("bytes and ")
        self.setUp()
        self.write(f"{0:020}.log", batch(0, *topic("a", A)), b"x" * 70)
        self.assertEqual(len(self.read()), 2)
        self.write(f"{2:020}.log", batch(2, *topic("b", B)))
        self.refused(f"{0:020}.log")

    def test_notOurs(self) -> None:
        """The directory of another broker is refused, and one that does not say whose it is."""
        self.log(*topic("a", A))
        self.refused("set brokerid=1", nodeId=2)
        self.files.remove("/log/meta.properties")
        self.refused("there is no meta.properties")

    def test_incomplete(self) -> None:
        """A broker without all records of a partition is refused."""
        self.log(*topic("a", A, 1, 2, isr=(2,)))
        self.refused("broker 1 has not all records of a-0: its replicas are on brokers [1, 2]")

    def test_elsewhere(self) -> None:
        """A partition of another of the broker's directories is refused; reserved ids say none."""
        mine, other = UUID(int=1 << 70), UUID(int=2 << 70)
        writeMetaProperties(self.files, "/log", MetaProperties("cluster", 1, mine))
        records = topic("a", A)
        records[1].directories = [other.bytes]
        self.log(*records)
        self.refused("a-0 is in another of the broker's log.dirs")
        for offset, found in ((2, UUID(int=1)), (3, mine)):
            moved = RECORDS["PartitionChangeRecord"](
                partitionId=0, topicId=A.bytes, directories=[found.bytes]
            )
            self.write(f"{offset:020}.log", batch(offset, moved))
            self.assertEqual(len(self.read()), 2)

    def test_alone(self) -> None:
        """The only replica has all records, also when none is in sync since it was stopped."""
        self.log(*topic("a", A, 1, isr=()))
        self.assertEqual(len(self.read()), 2)

    def test_contradictions(self) -> None:
        """Records that do not fit to those before them are refused."""
        remove = RECORDS["RemoveTopicRecord"](topicId=A.bytes)
        self.log(remove)
        self.assertRaises(CorruptLogError, self.read)
        self.setUp()
        self.log(topic("a", A)[0])
        self.refused("topic a has the partitions []")
        self.setUp()
        value = b"\1\x63\0"
        data = encodeBatch([Record(0, 5, None, value)])
        self.write(f"{0:020}.log", data)
        self.refused("unknown kind 99")

    def test_acls(self) -> None:
        """Access control lists are taken over, but for those that were removed."""
        rule = RECORDS["AccessControlEntryRecord"]
        fields = {
            "resourceType": 2,
            "patternType": 4,
            "resourceName": "a",
            "principal": "User:u",
            "host": "*",
            "operation": 3,
            "permissionType": 2,
        }
        self.log(
            rule(id=A.bytes, **fields),
            rule(id=B.bytes, **{**fields, "permissionType": 3}),
            rule(id=UUID(int=3).bytes, **fields),
            RECORDS["RemoveAccessControlEntryRecord"](id=B.bytes),
        )
        self.assertEqual(self.read()[1:], [AclRecord(2, 4, "a", "User:u", "*", 3, 2)])

    def test_users(self) -> None:
        """The last credentials of users are taken over, but for those that were removed."""
        credential = RECORDS["UserScramCredentialRecord"]
        keys = {"salt": b"salt", "storedKey": b"stored", "serverKey": b"server"}
        self.log(
            credential(name="u", mechanism=1, iterations=4096, **keys),
            credential(name="u", mechanism=2, iterations=5000, **keys),
            credential(name="u", mechanism=2, iterations=6000, **keys),
            RECORDS["RemoveUserScramCredentialRecord"](name="u", mechanism=1),
        )
        expected = ScramCredential(b"salt", b"stored", b"server", 6000).record("u", 2)
        self.assertEqual(self.read()[1:], [expected])

    def test_quotas(self) -> None:
        """The last quotas of clients are taken over, but for those that were removed."""
        quota: Any = RECORDS["ClientQuotaRecord"]
        user, default = (
            [quota.EntityData(entityType="user", entityName=name)] for name in ("u", None)
        )
        client = quota.EntityData(entityType="client-id", entityName="c")
        key = "producer_byte_rate"
        self.log(
            quota(entity=user, key=key, value=1.5),
            quota(entity=user, key=key, value=2.5),
            quota(entity=[*default, client], key=key, value=3.5),
            quota(entity=default, key=key, value=4.5),
            quota(entity=default, key=key, remove=True),
        )
        self.assertEqual(
            self.read()[1:],
            [
                QuotaRecord({"user": "u"}, key, 2.5),
                QuotaRecord({"user": None, "client-id": "c"}, key, 3.5),
            ],
        )

    def test_leftOut(self) -> None:
        """What this broker does not have is told and left out, if it is still there at the end."""
        self.log(
            *topic("a", A),
            config(2, "a", "preallocate", "true"),
            config(4, "1", "num.io.threads", "9"),
            config(16, "metrics", "interval.ms", "9"),
            config(32, "g", "share.session.timeout.ms", "50000"),
            RECORDS["DelegationTokenRecord"](tokenId="t"),
        )
        self.assertEqual(self.read()[1:], [TopicRecord("a", str(A), 1)])
        self.assertEqual(
            self.reports,
            [
                "a setting of topic a is left out: Invalid value true for configuration"
                " preallocate: this broker only has false",
                "a setting of broker 1 is left out: num.io.threads cannot be changed while the"
                " broker runs",
                "a setting of group g is left out: Unknown group config name:"
                " share.session.timeout.ms",
                "left out: delegation tokens (1)",
                "left out: settings of clients' metrics (1)",
            ],
        )
