"""
The topologies of C{docs/examples/topologies}, in the simulator, over three containers. What they
find equals what other code finds in the same input.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.net.endpointstrings import endpoint
from pylogbroker.records.recordbatch import Record
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.testing.topologysimulator import TopologySimulator
from pylogbroker.topologies.topology import Topology, loadTopologies
from pylogbroker.types import TopicPartition

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "docs" / "examples" / "topologies"
CONTAINERS = 3


def example(file: str, name: str, **config: object) -> Topology:
    """A topology of a file, with keys in which C{_} stands for a dot."""
    topology = loadTopologies(str(EXAMPLES / file))[name]
    return topology.withConfig({key.replace("_", "."): value for key, value in config.items()})


class ExampleCase(SynchronousTestCase):
    """What the examples print is not shown."""

    def setUp(self) -> None:
        self.patch(sys, "stdout", StringIO())


class WordCountTests(ExampleCase):
    """C{wordcount.py}."""

    def test_counts(self) -> None:
        """The counts of a text are those of a Counter."""
        text, output = ROOT / "LICENSE", Path(self.mktemp())
        truth = Counter(text.read_text(encoding="utf-8").lower().split())
        topology = example(
            "wordcount.py", "word-count", wordcount_text=str(text), wordcount_output=str(output)
        )
        with TopologySimulator(topology, CONTAINERS) as simulator:
            simulator.advanceUntil(
                lambda: output.exists() and sum(_read(output).values()) >= truth.total(), step=1
            )
            simulator.advance(35)
            self.assertEqual(_read(output), truth)
            self.assertEqual(simulator.failures, [])

    def test_endless(self) -> None:
        """Without a text there are sentences without end, and the report has the first words."""
        topology = example("wordcount.py", "word-count")
        with TopologySimulator(topology, CONTAINERS) as simulator:
            simulator.advance(3)
            [report] = simulator.components("report")
            counts = dict(report.counts)
            simulator.advance(1)
            self.assertTrue(counts)
            for word, count in counts.items():
                self.assertGreater(report.counts[word], count)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


class ActiveUsersTests(ExampleCase):
    """C{activeusers.py}, the paper's Figure 1."""

    def setUp(self) -> None:
        super().setUp()
        random = Random(7)
        users = [f"user-{number}" for number in range(40)] + ["robot-1"]
        tags = ["#snow", "#Snow", "#tea", "#bus", "late", "again"]
        self.events: list[dict[str, Any]] = []
        for number in range(1_200):
            event = {"minute": number // 100, "user": random.choice(users)}
            if random.random() < 0.6:
                event["text"] = " ".join(random.choices(tags, k=random.randrange(5)))
            else:
                event["likes"] = random.choice(users)
            self.events.append(event)
        self.file, self.folder = Path(self.mktemp()), Path(self.mktemp())
        self.file.write_text("".join(json.dumps(each) + "\n" for each in self.events))
        self.folder.mkdir()
        self.topology = example(
            "activeusers.py",
            "active-users",
            activeusers_events=str(self.file),
            activeusers_output=str(self.folder),
        )

    def truth(self) -> tuple[Counter[str], Counter[str]]:
        """How often each hashtag is in the file, and how many users were active in each minute."""
        texts = " ".join(each.get("text", "") for each in self.events).casefold().split()
        active = {
            (str(each["minute"]), each["user"])
            for each in self.events
            if "text" in each
            or (each["user"] != each["likes"] and each["user"].partition("-")[0] != "robot")
        }
        return (
            Counter(word for word in texts if word[0] == "#"),
            Counter(minute for minute, _user in active),
        )

    def results(self) -> tuple[Counter[str], Counter[str]]:
        """What all instances have written, summed."""
        found: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        for path in self.folder.glob("*.json"):
            found[path.name.startswith("active-users")].update(_read(path))
        return found

    def test_shape(self) -> None:
        """One spout, two streams, four bolts."""
        components = self.topology.components.values()
        self.assertEqual([each.name for each in components if each.isSpout], ["events"])
        self.assertEqual(set(self.topology.components["events"].outputs), {"tweets", "likes"})
        self.assertEqual(sum(not each.isSpout for each in components), 4)

    def test_results(self) -> None:
        """Hashtags and active users are those of the file."""
        with TopologySimulator(self.topology, CONTAINERS) as simulator:
            simulator.advanceUntil(lambda: self.results() == self.truth(), step=1)
            simulator.advance(35)
            self.assertEqual(self.results(), self.truth())
            self.assertEqual(simulator.failures, [])

    def test_kills(self) -> None:
        """
        While processes are killed, nothing is lost: active users are exact, since a user that comes
        twice counts once; hashtags may have counted twice.
        """
        services = {"events": 0.01}  # 200 events a second
        with TopologySimulator(
            self.topology, CONTAINERS, serviceSeconds=services, seed=1
        ) as simulator:
            simulator.advance(1)
            simulator.killInstance(simulator.tasks("parse-tweets")[0])
            simulator.advance(1)
            simulator.killStreamManager(2)
            simulator.advance(1)
            simulator.killMaster()
            simulator.killInstance(simulator.tasks("check-likes")[1])
            hashtags, active = self.truth()
            simulator.advanceUntil(lambda: self.results()[1] == active, 300, step=1)
            simulator.advance(35)
            self.assertEqual(self.results()[1], active)
            self.assertGreaterEqual(self.results()[0], hashtags)

    def test_madeUp(self) -> None:
        """Without a file, events are made up."""
        topology = example("activeusers.py", "active-users")
        with TopologySimulator(topology, CONTAINERS) as simulator:
            simulator.advance(1.5)
            found = [each.results() for each in simulator.components("count-hashtags")]
            self.assertEqual(set().union(*found), {"#snow", "#tea", "#scones", "#bus"})


LOG = """\
Dec 10 06:55:46 LabSZ sshd[24200]: Invalid user webmaster from 173.234.31.186
Dec 10 06:55:48 LabSZ sshd[24200]: Failed password for invalid user webmaster from 173.234.31.186 \
port 38926 ssh2
Dec 10 07:05:48 LabSZ sshd[24202]: Failed password for root from 173.234.31.186 port 39257 ssh2
Dec 10 07:20:00 LabSZ sshd[24204]: Connection closed by 212.47.254.145 [preauth]
Dec 10 07:21:00 LabSZ sshd[24205]: Failed password for git from 212.47.254.145 port 39300 ssh2
Dec 10 07:22:00 LabSZ sshd[24205]: Failed password for root from 173.234.31.186 port 39301 ssh2
Dec 10 07:23:00 LabSZ sshd[24206]: Accepted password for fztu from 119.137.62.142 port 49116 ssh2
Dec 10 07:24:00 LabSZ sshd[24207]: Failed password for git from 5.36.59.76 port 42393 ssh2
""".splitlines()
REPEATED = 25


class SshFailuresTests(SynchronousTestCase):
    """C{sshfailures.py}: a log spout, a log bolt, and a broker in a process of its own."""

    # The simulation's time is that of 1970.
    broker = BackgroundBroker({"num.partitions": "3", "log.retention.ms": "-1"})

    def setUp(self) -> None:
        self.broker.reset()
        self.cluster = KafkaCluster([endpoint(f"tcp:{self.broker.host}:{self.broker.port}")])
        self.addCleanup(self.cluster.close)
        lines = [line.encode() for line in LOG] * REPEATED
        for number in self.cluster.partitions("ssh-log", isCreating=True):
            records = [Record(0, 0, None, line) for line in lines[number::3]]
            RecordWriter(self.cluster).write(TopicPartition("ssh-log", number), records)
        self.topology = example(
            "sshfailures.py",
            "ssh-failures",
            bootstrap_servers=self.broker.bootstrapServers,
            fetch_max_wait_ms=1,
        )
        self.positions: dict[TopicPartition, int] = {}
        self.found: dict[str, dict[str, Any]] = {}

    def results(self) -> Mapping[str, Mapping[str, Any]]:
        """The last message of each address."""
        if not self.positions:
            for number in self.cluster.partitions("ssh-failures", isCreating=True):
                self.positions[TopicPartition("ssh-failures", number)] = 0
        reader = RecordReader(self.cluster, self.positions)
        for _where, record in reader.poll(1):
            self.found[(record.key or b"").decode()] = json.loads(record.value or b"")
        self.positions = reader.positions
        return self.found

    def truth(self) -> tuple[dict[str, int], dict[str, set[str]]]:
        """Attempts and users of each address, from the words of the lines."""
        attempts: Counter[str] = Counter()
        users: defaultdict[str, set[str]] = defaultdict(set)
        for line in LOG:
            words = line.split()
            if words[5] == "Failed":
                address, user = words[-4], words[-6]
                attempts[address] += REPEATED
                users[address].add(user)
        return dict(attempts), dict(users)

    def test_counts(self) -> None:
        """Each address has its count and its users; then positions are committed at the end."""
        attempts, users = self.truth()
        with TopologySimulator(self.topology, CONTAINERS) as simulator:
            simulator.advanceUntil(
                lambda: {key: each["attempts"] for key, each in self.results().items()} == attempts,
                step=0.5,
            )
            self.assertEqual({key: set(each["users"]) for key, each in self.found.items()}, users)
            simulator.advance(10)
            lags = Counter[str]()
            for task in simulator.tasks("lines"):
                lags.update(
                    {
                        name: int(value)
                        for name, value in simulator.metricValues(task).items()
                        if name.startswith("counter.log.lag.")
                    }
                )
            self.assertEqual(len(lags), 3)
            self.assertEqual(set(lags.values()), {0})
            self.assertEqual(simulator.failures, [])

    def test_kills(self) -> None:
        """Killed spouts and bolts lose no line: no count is too low, and no user is missed."""
        attempts, users = self.truth()
        services = {"lines": 0.05, "failed-logins": 0.01}
        with TopologySimulator(
            self.topology, CONTAINERS, serviceSeconds=services, seed=2
        ) as simulator:
            for name in ("lines", "write", "failed-logins", "lines"):
                simulator.advance(1)
                simulator.killInstance(simulator.tasks(name)[0])

            def isComplete() -> bool:
                found = self.results()
                return attempts.keys() == found.keys() and all(
                    found[address]["attempts"] >= count
                    and set(found[address]["users"]) == users[address]
                    for address, count in attempts.items()
                )

            simulator.advanceUntil(isComplete, 300, step=0.5)


class PageTests(ExampleCase):
    """What C{docs/topologies.md} shows."""

    def test_code(self) -> None:
        """It has the word count as it is in its file, and a test of it that runs."""
        page = (ROOT / "docs" / "topologies.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        file = (EXAMPLES / "wordcount.py").read_text(encoding="utf-8")
        self.assertEqual(blocks[0], file.split('"""', 2)[2].lstrip())
        [test] = [each for each in blocks if "TopologySimulator(" in each]
        names = {
            "wordCount": example("wordcount.py", "word-count"),
            "TopologySimulator": TopologySimulator,
        }
        test = test.replace("advance(5)", "advance(1.5)")
        exec(test, dict(names))
        with self.assertRaises(AssertionError):
            exec(test.replace("> 0", "< 0"), dict(names))
