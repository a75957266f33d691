"""Answers of two brokers that behave alike are the same JSON."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.protocol.kafka import messages
from pylogbroker.records.recordbatch import Record, encodeBatch
from tests.oracle.normaliser import Normaliser

BASE_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
ORDERS = bytes(range(16))


class NormaliserTests(SynchronousTestCase):
    """L{Normaliser}."""

    def setUp(self) -> None:
        self.names = Normaliser(BASE_MS, nodeId=3)

    def test_topicIds(self) -> None:
        """A topic id is named after its topic wherever it occurs, the zero id is 0."""
        cls = messages.MetadataResponse
        topic = cls.MetadataResponseTopic(name="orders", topicId=ORDERS)
        self.names.learn(cls(topics=[topic]))
        fetched = messages.FetchResponse
        topics = [
            fetched.FetchableTopicResponse(topicId=ident)
            for ident in (ORDERS, bytes(16), b"x" * 16)
        ]
        answer = self.names.normalise(fetched(responses=topics), 13)
        self.assertEqual(
            [topic["topicId"] for topic in answer["responses"]],
            ["0", "78787878787878787878787878787878", "<id of orders>"],
        )

    def test_addresses(self) -> None:
        """Host, port, node and cluster have one name each; -1 stays."""
        cls = messages.MetadataResponse
        broker = cls.MetadataResponseBroker(nodeId=3, host="localhost", port=9092)
        part = cls.MetadataResponsePartition
        topic = cls.MetadataResponseTopic(
            name="t", partitions=[part(leaderId=-1, replicaNodes=[3, 4], isrNodes=[])]
        )
        body = cls(brokers=[broker], clusterId="abc", controllerId=3, topics=[topic])
        answer = self.names.normalise(body, 5)
        self.assertEqual(
            answer["brokers"],
            [{"nodeId": "<node>", "host": "<host>", "port": "<port>", "rack": None}],
        )
        self.assertEqual((answer["clusterId"], answer["controllerId"]), ("<clusterId>", "<node>"))
        found = answer["topics"][0]["partitions"][0]
        self.assertEqual((found["leaderId"], found["replicaNodes"]), (-1, ["<node>", 4]))

    def test_onlyFieldsOfTheVersion(self) -> None:
        """A field that the version does not have is not in the answer."""
        answer = self.names.normalise(messages.MetadataResponse(), 0)
        self.assertEqual(sorted(answer), ["brokers", "topics"])

    def test_countedIds(self) -> None:
        """Member ids are counted as they are given out, and stay the same in later answers."""
        cls = messages.JoinGroupResponse
        first = self.names.normalise(cls(memberId="abc", leader="abc"), 2)
        self.assertEqual((first["memberId"], first["leader"]), ("<member 1>", "<member 1>"))
        members = [
            cls.JoinGroupResponseMember(memberId="zzz", metadata=b"1"),
            cls.JoinGroupResponseMember(memberId="aaa", metadata=b"2"),
        ]
        second = self.names.normalise(cls(memberId="abc", leader="other", members=members), 2)
        self.assertEqual(
            [member["memberId"] for member in second["members"]], ["<member 2>", "<member 3>"]
        )
        self.assertEqual(second["leader"], "other")

    def test_producerIds(self) -> None:
        """Producer ids have names in answers and in batches."""
        self.names.learn(messages.InitProducerIdResponse(producerId=77, producerEpoch=0))
        data = encodeBatch(
            [Record(0, 5, None, b"v")], producerId=77, producerEpoch=0, baseSequence=4
        )
        (batch,) = self.names.batches(data)
        self.assertEqual(batch["producer"], ["<producer 1>", 0, 4])

    def test_batches(self) -> None:
        """Records are shown with their times; a cut batch at the end is left out."""
        data = encodeBatch([Record(4, BASE_MS + 7, b"k", b"\0", (("h", None),))], baseOffset=4)
        (batch,) = self.names.batches(data + data[:-1])
        self.assertEqual(
            batch,
            {
                "offsets": [4, 4],
                "leaderEpoch": -1,
                "attributes": 0,
                "maxTimestamp": "T+7",
                "records": [[4, "T+7", "k", "00", [["h", None]]]],
            },
        )
        corrupt = self.names.batches(data[:-1] + b"x")
        self.assertEqual(corrupt, ["corrupt at 0: InvalidChecksumError"])

    def test_times(self) -> None:
        """Times of requests are counted from the base; the present is "now"; others stay."""
        self.assertEqual(
            [
                self.names.time(value)
                for value in (BASE_MS, BASE_MS + HOUR_MS + 5, -1, 12, BASE_MS - 1)
            ],
            ["T+0", "<now>", -1, 12, BASE_MS - 1],
        )

    def test_texts(self) -> None:
        """Ids and times in error messages have names, ordinary words stay."""
        self.names.learn(messages.JoinGroupResponse(memberId="me-1"))
        cls = messages.CreateTopicsResponse
        text = (
            f"me-1 at {BASE_MS + 5} with AbCdEfGhIjKlMnOpQrSt12 in unclean.leader.election.enable"
        )
        body = cls(topics=[cls.CreatableTopicResult(name="t", errorMessage=text)])
        answer = self.names.normalise(body, 4)
        self.assertEqual(
            answer["topics"][0]["errorMessage"],
            "<member 1> at <time> with <uuid> in unclean.leader.election.enable",
        )

    def test_scram(self) -> None:
        """The broker's nonce and signature have names; the rest of the tokens stays."""
        for token, text in (
            (b"r=clientnonceXYZ,s=c2FsdA==,i=4096", "r=clientnonce<nonce>,s=c2FsdA==,i=4096"),
            (b"v=abc/+d==", "v=<signature>"),
            (b"other", "other"),
        ):
            body = messages.SaslAuthenticateResponse(authBytes=token)
            self.assertEqual(self.names.normalise(body, 0)["authBytes"], text)

    def test_own(self) -> None:
        """Lists keep the topics and groups with a prefix only."""
        cls = messages.ListGroupsResponse
        groups = [cls.ListedGroup(groupId=name) for name in ("mine-2", "other", "mine-1")]
        answer = self.names.normalise(cls(groups=groups), 0, "mine")
        self.assertEqual([group["groupId"] for group in answer["groups"]], ["mine-1", "mine-2"])
