"""
Topologies of real processes, over three containers, and what becomes of them when processes are
killed. Longer runs are in L{tests.long.topologykills}.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.topologyprocess import TopologyProcess, until
from tests.integration.topologyprogram import sentence

CONTAINERS = 3
COUNT = 2_000


def words(numbers: set[int]) -> set[tuple[str, int, int]]:
    """Each word, the number of its sentence, and its place there."""
    return {
        (word, number, index)
        for number in numbers
        for index, word in enumerate(sentence(number).split(" "))
    }


def writtenWords(lines: list[str]) -> set[tuple[str, int, int]]:
    """As L{words}, from what bolts have written."""
    found = set()
    for line in lines:
        word, number, index = line.split(" ")
        found.add((word, int(number), int(index)))
    return found


class TopologyTests(SynchronousTestCase):
    """Whole topologies."""

    def started(self, topology: str, *changes: str) -> TopologyProcess:
        made = TopologyProcess(Path(self.mktemp()), topology, CONTAINERS, *changes)
        self.addCleanup(made.destroy)
        made.untilActive()
        return made

    def test_figure(self) -> None:
        """
        The paper's Figure 1: each bolt writes what a loop over the sentences does. The commands
        tell of it, pause it, and end it; then nothing of it is left.
        """
        running = self.started("figure-1", f"sentences.count={COUNT}")
        until(lambda: len(running.numbers("acked")) == COUNT, "all are acknowledged")
        odd, even = set(range(1, COUNT, 2)), set(range(0, COUNT, 2))
        lengths = {(str(len(sentence(each))), each) for each in even}
        self.assertEqual(writtenWords(running.written("words")), words(odd))
        both = [line.split(" ") for line in running.written("all")]
        self.assertEqual(
            {(a, int(b)) for a, b in (each for each in both if len(each) == 2)}, lengths
        )
        self.assertEqual(
            writtenWords([" ".join(each) for each in both if len(each) == 3]), words(odd)
        )
        # Each word is in the file of one instance, since it is its field.
        places = Counter(
            word
            for path in running.folder.glob("words-*")
            for word in {line.split(" ")[0] for line in path.read_text().splitlines()}
        )
        self.assertEqual(set(places.values()), {1})

        self.assertIn("figure-1", running.command("list"))
        running.command("deactivate", "figure-1")
        found = json.loads(running.command("describe", "figure-1", "--json"))
        self.assertEqual(found["state"], "paused")
        self.assertEqual(found["running"], [0, 1, 2, 3])
        until(
            lambda: running.counted("sentences", "emitted") == COUNT,
            "the master knows what was emitted",
        )
        self.assertIn("lengths", running.command("describe", "figure-1"))
        running.command("kill", "figure-1")
        self.assertEqual((running.wait(), running.processes()), (0, {}))

    def test_kills(self) -> None:
        """
        C{kill -9} of an instance of a bolt and of the spout, of a stream manager, the master, and
        an executor with its whole container: the topology goes on unaided, and nothing is lost.
        """
        running = self.started("word-count", "sentences.count=0", "topology.message.timeout.secs=3")
        running.untilAcked(25)
        for name in (
            "1 instance split 4",
            "1 instance sentences 1",
            "2 stream-manager",
            "0 master",
            "3 executor",
        ):
            if name not in running.processes():
                self.fail(f"{name}: there are {sorted(running.processes())}")
            running.kill(name)
            running.untilAcked(25)
        (running.folder / "end").touch()
        running.untilAllAcked()
        acked = running.numbers("acked")
        self.assertEqual(writtenWords(running.written("words")), words(acked))
        for index in range(2):
            own = sorted(each for each in acked if each % 2 == index)
            self.assertEqual(own, list(range(index, own[-1] + 1, 2)))
        self.assertEqual((running.stop(), running.processes()), (0, {}))
