"""Tests for L{pylogbroker.consumer.groupstate}."""

from __future__ import annotations

import json

from twisted.logger import LogLevel, capturedLogs

from pylogbroker.cluster.subscription import whitelist
from tests.consumer.groupcase import GroupCase, drain


class GarbageTests(GroupCase):
    """What others have written does not stop anybody."""

    def check(self, path: str, data: bytes, text: str, owned: int = 2) -> None:
        """A node is named in the log, once, and the member has its share all the same."""
        self.cluster.write(path, data)
        with capturedLogs() as events:
            member = self.member()
            self.streams(member)
            self.assertEqual(len(member.owned), owned)
            self.cluster.addTopic(0, f"more{self.memberCount}", 1)
            self.cluster.write("/brokers/topics/t/3", b"0")
            self.cluster.turn()
            self.cluster.do(self.cluster.admin.delete("/brokers/topics/t/3"))
        errors = [
            event["text"]
            for event in events
            if event["log_level"] is LogLevel.error and "text" in event
        ]
        self.assertEqual(len(errors), 1, errors)
        self.assertIn(text, errors[0])
        self.cluster.do(self.cluster.admin.delete(path))
        self.end(member)

    def test_members(self) -> None:
        """A registration that is none."""
        for data in (
            b"what?",
            b'{ "t": 1.5 }',
            b"[1]",
            b"\xff\xfe",
            b'{ "t": 2147483647 }',
            b"*2147483647*.*",
        ):
            self.check("/consumers/g/ids/g_stranger", data, "/consumers/g/ids/g_stranger")

    def test_javaPattern(self) -> None:
        """A pattern that only Java knows: that member is named, and taken not to be there."""
        self.check("/consumers/g/ids/g_java", rb"*1*\p{Alpha}", "g_java")
        self.check("/consumers/g/ids/g_java", b"*1*[a-z&&[^t]]", "g_java")
        self.check("/consumers/g/ids/g_java", b"*1*(?iu)T", "g_java")

    def test_endlessPattern(self) -> None:
        """A pattern that would keep Python's matcher busy for ever is matched all the same; if that cannot be, that member is taken not to be there."""
        self.check("/consumers/g/ids/g_endless", b"*1*(?!x)(a+)+b", "could take for ever")
        self.cluster.write("/consumers/g/ids/g_endless", b"*1*(a+)+b")
        for name in ("a" * 200, "a" * 200 + "b"):
            self.cluster.write(f"/brokers/topics/{name}/0", b"1")
        member = self.member()
        self.soon(member.createMessageStreamsByFilter(whitelist("a+")))
        self.assertEqual({each.topic for each in member.owned}, {"a" * 200})

    def test_counts(self) -> None:
        """A number of partitions that is none, or absurd, and a broker that is not named like one."""
        self.check("/brokers/topics/t/1", b"many", "/brokers/topics/t/1")
        self.check("/brokers/topics/t/1", b"-4", "/brokers/topics/t/1")
        self.check("/brokers/topics/t/1", b"4000000000", "/brokers/topics/t/1")
        self.check("/brokers/topics/t/one", b"1", "/brokers/topics/t/one")
        self.check("/brokers/topics/t/007", b"1", "/brokers/topics/t/007")

    def test_broker(self) -> None:
        """A broker's registration that cannot be read: its partitions wait, the others flow."""
        self.cluster.write("/brokers/ids/5", b"nonsense")
        self.cluster.write("/brokers/topics/t/5", b"1")
        self.broker.log("t", 0).append(b"a")
        (stream,) = self.streams(self.member())
        self.assertEqual(drain(stream), [b"a"])

    def test_topicNames(self) -> None:
        """With a filter: a topic whose name no request can carry, or that would be no step of a path, is left out."""
        long = "x" * 40_000
        self.cluster.write(f"/brokers/topics/{long}/0", b"1")
        self.cluster.write("/brokers/topics/a\ue000b/0", b"1")
        member = self.member()
        self.soon(member.createMessageStreamsByFilter(whitelist("(?s).*")))
        self.assertEqual({each.topic for each in member.owned}, {"t"})

    def test_ownRegistration(self) -> None:
        """A registration that somebody deletes is there again, and the member has its share."""
        member = self.member()
        self.streams(member)
        self.cluster.do(self.cluster.admin.delete("/consumers/g/ids/g_m1"))
        self.cluster.advance(3)
        self.assertEqual(
            json.loads(self.cluster.zookeeper.tree()["/consumers/g/ids/g_m1"][0]), {"t": 1}
        )
        self.assertEqual(len(member.owned), 2)
