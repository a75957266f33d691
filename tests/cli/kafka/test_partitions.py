"""Leaders and replicas, planned and moved by commands."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.kafka import partitions
from pylogbroker.cluster.metadataimage import ConfigRecord, PartitionImage, TopicRecord
from tests.broker.kafka.clusterbench import ClusterBench
from tests.cli.commands import Outcome, performAtOnce
from tests.cli.kafka.benchserver import BenchServer


class ClusterCommandCase(SynchronousTestCase):
    """
    Three brokers that replicate; followers catch up as soon as a command looks. C{a} has a
    partition that broker 2 leads though broker 1 is preferred, and one on broker 3 alone.
    """

    def setUp(self) -> None:
        self.patch(partitions, "LOOK_SECONDS", 0)
        self.bench = ClusterBench()
        self.server = BenchServer(self.bench)
        self.addCleanup(self.server.close)
        self.put("a", PartitionImage(2, 0, 0, (1, 2), (1, 2)), PartitionImage(3, 0, 0, (3,), (3,)))

    def put(self, name: str, *images: PartitionImage) -> None:
        """A topic with these partitions."""
        topicId = self.bench.metadata.newTopicId()
        self.bench.change(
            TopicRecord(name, str(topicId), len(images)),
            *(each.record(topicId, index) for index, each in enumerate(images)),
        )
        self.bench.settle()

    def partition(self, index: int = 0, name: str = "a") -> PartitionImage:
        return self.bench.metadata.image.topics[name].partitions[index]

    def execute(self, *words: str, input: bytes = b"") -> Outcome:
        place = ("--bootstrap-server", self.server.servers, "--timeout-ms", "5000")
        return performAtOnce(*words, *place, input=input)

    def done(self, *words: str, input: bytes = b"") -> tuple[str, str]:
        """Output and messages of a command that succeeds."""
        outcome = self.execute(*words, input=input)
        self.assertEqual(outcome.code, 0, outcome.errors)
        return outcome.output.decode(), outcome.errors

    def failed(self, *words: str, input: bytes = b"") -> str:
        outcome = self.execute(*words, input=input)
        self.assertEqual(outcome.code, 1, outcome.errors)
        return outcome.errors

    def stop(self, brokerId: int) -> None:
        """A broker is gone."""
        self.bench.kill(brokerId)
        self.bench.fence(brokerId)


class ElectTests(ClusterCommandCase):
    """C{partition elect}."""

    def test_preferred(self) -> None:
        """It is shown, then done, then there is nothing to do."""
        output, errors = self.done("partition", "elect")
        self.assertEqual(
            [line.split() for line in output.splitlines()],
            [["TOPIC", "PARTITION", "LEADER", "PREFERRED", "ISR"], ["a", "0", "2", "1", "1,2"]],
        )
        self.assertIn("nothing was changed; --execute does it", errors)
        self.assertEqual(self.partition().leader, 2)
        self.assertIn("elected 1 leader", self.done("partition", "elect", "a:0", "--execute")[1])
        self.assertEqual(self.partition().leader, 1)
        output, errors = self.done("partition", "elect", "--execute")
        self.assertEqual(output, "")
        self.assertIn("each partition is led by its preferred replica", errors)

    def test_refused(self) -> None:
        """A preferred replica that is not in sync does not lead, and that is told."""
        self.put("b", PartitionImage(2, 0, 0, (1, 2), (2,)))
        errors = self.failed("partition", "elect", "b", "--execute")
        self.assertIn("b-0: PREFERRED_LEADER_NOT_AVAILABLE", errors)
        self.assertIn("elected 0 leaders", errors)
        outcome = self.execute("partition", "elect", "b", "--execute", "--json")
        [found] = json.loads(outcome.output)["elections"]
        self.assertEqual((found["leader"], found["preferredLeader"], found["inSync"]), (2, 1, [2]))
        self.assertIn("PREFERRED_LEADER_NOT_AVAILABLE", found["error"])

    def test_unclean(self) -> None:
        """A partition without a leader gets one that may lack records: with a warning."""
        self.put("b", PartitionImage(3, 0, 0, (3, 1), (3,)))
        self.assertIn(
            "no partition lacks a leader", self.done("partition", "elect", "--unclean")[1]
        )
        self.stop(3)
        output, errors = self.done("partition", "elect", "b", "--unclean")
        self.assertEqual(output.splitlines()[1].split()[:3], ["b", "0", "-"])
        self.assertIn("may lose records", errors)
        self.done("partition", "elect", "b", "--unclean", "--execute")
        self.assertEqual(self.partition(0, "b").leader, 1)

    def test_unknown(self) -> None:
        """Topics and partitions that are not there."""
        self.assertIn("there is no topic x", self.failed("partition", "elect", "x"))
        self.assertIn("there is no partition a-7", self.failed("partition", "elect", "a:7"))


class MoveTests(ClusterCommandCase):
    """C{partition plan} and C{partition reassign}."""

    def plan(self, *words: str) -> Any:
        output, self.errors = self.done("partition", "plan", *words)
        return json.loads(output) if output else None

    def test_life(self) -> None:
        """A plan is shown, carried out with its progress, and the way back is kept."""
        document = self.plan("--brokers", "1,2")
        self.assertEqual(
            document,
            {"version": 1, "partitions": [{"topic": "a", "partition": 1, "replicas": [1]}]},
        )
        self.assertIn("1 partition of 2 change: 1 replica to copy", self.errors)
        path, before = self.mktemp(), self.mktemp()
        Path(path).write_text(json.dumps(document))
        output, errors = self.done("partition", "reassign", path)
        self.assertEqual(output.splitlines()[1].split(), ["a", "1", "3", "1", "1", "3"])
        self.assertIn("nothing was changed", errors)
        output, errors = self.done("partition", "reassign", path, "--execute", "--save", before)
        self.assertIn("0 of 1 reassignment complete; under way: a-1", errors)
        self.assertTrue(errors.endswith("1 reassignment complete\n"), errors)
        self.assertEqual(self.partition(1).replicas, (1,))
        self.assertIn("these replicas already", self.done("partition", "reassign", path)[1])
        self.done("partition", "reassign", before, "--execute")
        self.assertEqual(self.partition(1).replicas, (3,))
        self.assertIn("exists", self.failed(
            "partition", "reassign", path, "--execute", "--save", before
        ))  # fmt: skip

    def test_progress(self) -> None:
        """One request tells of all reassignments, so that each step of the progress is true."""
        self.put("b", *[PartitionImage(1, 0, 0, (1,), (1,))] * 4)
        moves = [{"topic": "b", "partition": each, "replicas": [2]} for each in range(4)]
        text = json.dumps({"partitions": moves}).encode()
        errors = self.done("partition", "reassign", "-", "--execute", input=text)[1]
        for count in range(4):  # one of them is complete behind each request
            self.assertIn(f"{count} of 4 reassignments complete;", errors)

    def test_balance(self) -> None:
        """All brokers get their share, and racks are respected."""
        self.server.setRacks({1: "x", 2: "x", 3: "y"})
        self.put("b", *[PartitionImage(1, 0, 0, (1, 3), (1, 3))] * 4)
        self.assertEqual(self.plan("a", "--brokers", "1,2,3"), None)
        self.assertIn("nothing is to be moved", self.errors)
        document = self.plan("b", "--balance")
        for each in document["partitions"]:
            self.assertEqual(len(set(each["replicas"]) & {1, 2}), 1)
        self.done("partition", "reassign", "-", "--execute", input=json.dumps(document).encode())
        leaders = [self.partition(index, "b").replicas[0] for index in range(4)]
        self.assertEqual(sorted({leaders.count(each) for each in (1, 2, 3)}), [1, 2])
        document = self.plan("b", "--replication-factor", "3")
        self.assertEqual([len(each["replicas"]) for each in document["partitions"]], [3] * 4)

    def test_cancelled(self) -> None:
        """A reassignment goes on where the command does not wait for it, and can be cancelled."""
        self.server.isCatchingUp = False
        text = b'{"partitions": [{"topic": "a", "partition": 1, "replicas": [1, 2]}]}'
        words = ("partition", "reassign", "-")
        self.assertIn(
            "no reassignment of these partitions is under way",
            self.done(*words, "--cancel", "--execute", input=text)[1],
        )
        errors = self.done(*words, "--execute", "--no-wait", input=text)[1]
        self.assertIn("1 reassignment began", errors)
        self.assertIn("these replicas already", self.done(*words, input=text)[1])
        self.assertIn("nothing was stopped", self.done(*words, "--cancel", input=text)[1])
        self.assertEqual(self.partition(1).adding, (1, 2))
        errors = self.done(*words, "--cancel", "--execute", input=text)[1]
        self.assertIn("stopped 1 reassignment", errors)
        self.assertEqual(self.partition(1).replicas, (3,))

    def test_refused(self) -> None:
        """What cannot be read, is not there, or is refused."""
        words = ("partition", "reassign", "-", "--execute")
        self.assertIn("no file of reassignments: it is no JSON", self.failed(*words, input=b"{"))
        text = b'{"partitions": [{"topic": "a", "partition": 1, "replicas": [9]}]}'
        errors = self.failed(*words, input=text)
        self.assertIn("a-1: INVALID_REPLICA_ASSIGNMENT: The manual partition", errors)
        self.assertIn("there is no broker 9; there are: 1, 2, 3", self.failed(
            "partition", "plan", "--brokers", "1,9"
        ))  # fmt: skip
        self.assertIn("2 replicas of a partition need as many brokers", self.failed(
            "partition", "plan", "--brokers", "1"
        ))  # fmt: skip
        for line in (
            "partition plan --brokers 1,x",
            "partition plan a:x",
            "topic create t --replica-assignment 1:",
        ):
            with redirect_stderr(io.StringIO()):
                self.assertRaises(SystemExit, self.execute, *line.split())

    def test_cancelRefused(self) -> None:
        """A cancellation that the cluster refuses is told."""
        self.server.isCatchingUp = False
        part = PartitionImage(1, 1, 1, (1, 3), (1,), adding=(1,), removing=(3,))
        self.put("b", part)
        text = b'{"partitions": [{"topic": "b", "partition": 0, "replicas": [1]}]}'
        errors = self.failed("partition", "reassign", "-", "--cancel", "--execute", input=text)
        self.assertIn("unclean leader election", errors)
        self.assertIn("stopped 0 reassignments", errors)


RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
MOVES = b"""{"partitions": [{"topic": "a", "partition": 0, "replicas": [2, 3]},
    {"topic": "a", "partition": 1, "replicas": [3]}]}"""


class ThrottleTests(ClusterCommandCase):
    """C{partition reassign --throttle}."""

    words = ("partition", "reassign", "-", "--execute")

    def lists(self, name: str = "a") -> list[str | None]:
        configs = self.bench.metadata.image.topics[name].configs
        return [configs.get(each) for each in LISTS]

    def rates(self) -> dict[str, list[str]]:
        """By broker, those that have one."""
        configs = self.bench.metadata.image.brokerConfigs
        return {
            owner: [found[each] for each in RATES]
            for owner, found in configs.items()
            if {*RATES} & {*found}
        }

    def begin(self, rate: str) -> str:
        self.server.isCatchingUp = False
        return self.done(*self.words, "--no-wait", "--throttle", rate, input=MOVES)[1]

    def test_life(self) -> None:
        """
        The replicas that move are throttled as by Kafka's tool, and again with another rate; the
        end removes all that.
        """
        errors = self.begin("1000")
        self.assertIn("throttled to 1000 bytes in a second for each broker", errors)
        self.assertEqual(self.lists(), ["0:1,0:2", "0:3"])
        self.assertEqual(self.rates(), {each: ["1000", "1000"] for each in ("1", "2", "3")})
        self.begin("2000")
        self.assertEqual(self.lists(), ["0:1,0:2", "0:3"])
        self.assertEqual(self.rates()["3"], ["2000", "2000"])
        self.server.isCatchingUp = True
        errors = self.done(*self.words, input=MOVES)[1]
        self.assertIn("the throttles are removed", errors)
        self.assertEqual((self.lists(), self.rates()), ([None, None], {}))
        self.assertEqual(self.partition(0).replicas, (2, 3))
        self.assertNotIn("throttle", self.done(*self.words, input=MOVES)[1])

    def test_cancelled(self) -> None:
        """So does a cancellation."""
        self.begin("1000")
        words = ("partition", "reassign", "-", "--cancel", "--execute")
        self.assertIn("the throttles are removed", self.done(*words, input=MOVES)[1])
        self.assertEqual((self.lists(), self.rates()), ([None, None], {}))

    def test_others(self) -> None:
        """The brokers' rates stay while another topic moves."""
        self.put("b", PartitionImage(1, 0, 0, (1,), (1,)))
        self.begin("1000")
        other = b'{"partitions": [{"topic": "b", "partition": 0, "replicas": [2]}]}'
        self.done(*self.words, "--no-wait", input=other)
        errors = self.done("partition", "reassign", "-", "--cancel", "--execute", input=MOVES)[1]
        self.assertIn("other reassignments are under way", errors)
        self.assertEqual(self.lists(), [None, None])
        self.assertEqual(sorted(self.rates()), ["1", "2", "3"])

    def test_refused(self) -> None:
        """What does not begin leaves no throttle; nor does a plan that moves nothing."""
        wrong = b'{"partitions": [{"topic": "a", "partition": 1, "replicas": [3, 9]}]}'
        errors = self.failed(*self.words, "--throttle", "10", input=wrong)
        self.assertIn("the throttle of broker 9 is as before: the cluster has no broker 9", errors)
        self.assertEqual((self.lists(), self.rates()), ([None, None], {}))
        same = b'{"partitions": [{"topic": "a", "partition": 0, "replicas": [2, 1]}]}'
        self.assertNotIn("throttle", self.done(*self.words, "--throttle", "10", input=same)[1])
        self.assertEqual(self.lists(), [None, None])

    def test_byHand(self) -> None:
        """Without throttled replicas among those that moved, what an operator has set stays."""
        self.bench.change(ConfigRecord("broker", "1", RATES[0], "5"))
        self.done(*self.words, input=MOVES)
        self.assertEqual(self.bench.metadata.image.brokerConfigs["1"], {RATES[0]: "5"})


class DrainTests(ClusterCommandCase):
    """C{broker drain} and C{broker decommission}."""

    def test_drain(self) -> None:
        """Its partitions move to the others; nothing else does."""
        output, errors = self.done("broker", "drain", "3")
        self.assertEqual(output.splitlines()[1].split(), ["a", "1", "3", "1", "1", "3"])
        self.assertIn("nothing was changed", errors)
        self.assertIn("topics of Kafka 0.7 stay on broker 3", errors)
        self.done("broker", "drain", "3", "--execute")
        self.assertEqual(self.partition(1).replicas, (1,))
        self.assertEqual(self.partition(0).partitionEpoch, 0)
        errors = self.done("broker", "drain", "3", "--execute")[1]
        self.assertIn("no partition is to leave broker 3", errors)
        self.assertIn(
            "broker 7 does not run; there are: 1, 2, 3", self.failed("broker", "drain", "7")
        )

    def test_leadersOnly(self) -> None:
        """Other replicas lead; what a broker has alone stays, and is counted."""
        self.put(
            "b", PartitionImage(3, 0, 0, (3, 2), (3, 2)), PartitionImage(3, 0, 0, (3, 1), (3,))
        )
        errors = self.failed("broker", "drain", "3", "--leaders-only", "--execute")
        self.assertIn("goes on leading 1 partition, of which it alone has a replica", errors)
        self.assertIn("b-1: PREFERRED_LEADER_NOT_AVAILABLE", errors)
        found = self.partition(0, "b")
        self.assertEqual((found.leader, found.replicas), (2, (2, 3)))
        self.assertEqual(self.partition(1, "b").leader, 3)

    def test_alone(self) -> None:
        """There is nowhere to go."""
        self.stop(1)
        self.stop(2)
        self.assertIn("no other broker than 3", self.failed("broker", "drain", "3"))

    def test_decommission(self) -> None:
        """The partitions move, the broker is stopped, its registration goes."""
        self.done("broker", "decommission", "3")
        self.assertEqual(self.partition(1).replicas, (3,))
        errors = self.failed("broker", "decommission", "3", "--execute")
        self.assertIn("stop it, and run this again", errors)
        self.assertEqual(self.partition(1).replicas, (1,))
        self.stop(3)
        errors = self.done("broker", "decommission", "3")[1]
        self.assertIn("broker 3 would be unregistered; --execute does it", errors)
        errors = self.done("broker", "decommission", "3", "--execute")[1]
        self.assertIn("unregistered broker 3", errors)
        self.assertEqual(list(self.bench.metadata.image.brokers), [1, 2])
        self.assertIn("broker 3 is not registered", self.failed("broker", "decommission", "3"))

    def test_notCopied(self) -> None:
        """A broker keeps its registration as long as it has replicas."""
        self.server.isCatchingUp = False
        errors = self.failed("broker", "decommission", "3", "--execute", "--no-wait")
        self.assertIn("is not unregistered: it has replicas of 1 partition", errors)


class TopicFilterTests(ClusterCommandCase):
    """C{topic describe} and C{topic create} in a cluster."""

    def shown(self, *words: str) -> list[list[str]]:
        output = self.done("topic", "describe", *words)[0]
        return [line.split()[:2] for line in output.splitlines()[1:]]

    def test_filters(self) -> None:
        """Only partitions in trouble are shown."""
        for each in ("--under-replicated", "--under-min-isr", "--unavailable"):
            self.assertEqual(self.shown(each), [])
        self.put("b", PartitionImage(1, 0, 0, (1, 3), (1,)), PartitionImage(1, 0, 0, (1,), (1,)))
        self.assertEqual(self.shown("--under-replicated"), [["b", "0"]])
        topicId = str(self.bench.metadata.image.topics["b"].topicId)
        self.bench.change(ConfigRecord("topic", topicId, "min.insync.replicas", "2"))
        output = self.execute("topic", "describe", "--under-min-isr", "--json").document()
        [topic] = output["topics"]
        self.assertEqual([each["partition"] for each in topic["partitions"]], [0, 1])
        self.stop(3)
        outcome = self.execute("topic", "describe", "a", "--unavailable")
        self.assertEqual(outcome.output.splitlines()[1].split()[:3], [b"a", b"1", b"-"])
        self.assertIn("a-1 has no leader", outcome.errors)

    def test_oldTopics(self) -> None:
        """Topics of Kafka 0.7 have no replicas."""
        words = ("topic", "describe", "--unavailable", "--zookeeper", "z:1")
        with redirect_stderr(io.StringIO()):
            self.assertRaises(SystemExit, performAtOnce, *words)

    def test_assigned(self) -> None:
        """A new topic has the replicas that are asked for."""
        self.done("topic", "create", "c", "--replica-assignment", "1:2,3:1")
        found = self.bench.metadata.image.topics["c"].partitions
        self.assertEqual([each.replicas for each in found], [(1, 2), (3, 1)])
        errors = self.failed("topic", "create", "d", "--replica-assignment", "7")
        self.assertIn("INVALID_REPLICA_ASSIGNMENT", errors)
