"""
A topology for C{streamparse} in real processes: the project of C{sparse quickstart}, as it is.
"""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.topologyprocess import TopologyProcess, until
from tests.topologies.multilang.test_definitions import quickstart


def subprocessesOf(parents: set[int]) -> set[int]:
    """The processes whose parent is one of these."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        if parent in parents:
            found.add(int(path.parent.name))
    return found


def isAlive(pid: int) -> bool:
    """Whether a process runs; one whose parent has not been told of its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class BridgedTopologyTests(SynchronousTestCase):
    """C{pylogbroker topology submit}."""

    def test_quickstart(self) -> None:
        """
        Words are counted; when an instance is killed its subprocess ends, and another one counts;
        no subprocess is left in the end.
        """
        file = quickstart() / "topologies" / "wordcount.py"
        running = TopologyProcess(Path(self.mktemp()), "wordcount", 2, file=file)
        self.addCleanup(running.destroy)
        running.untilActive()
        until(lambda: running.counted("count_bolt", "executed") > 1_000, "words are counted")
        instances = {name: pid for name, pid in running.processes().items() if " instance " in name}
        self.assertEqual(len(instances), 3)
        before = subprocessesOf(set(instances.values()))
        self.assertEqual(len(before), 3)
        (killed,) = (name for name in instances if "count_bolt 2" in name)
        (its,) = subprocessesOf({instances[killed]})
        running.kill(killed)
        until(lambda: not isAlive(its), "the end of its subprocess")
        logs = list(running.state.glob("wordcount/container-*/instance-2-count_bolt.log"))
        (log,) = logs
        until(
            lambda: len(set(re.findall(r"\[pid=(\d+)\]", log.read_text()))) == 2,
            "another subprocess counts words",
        )
        now = {pid for name, pid in running.processes().items() if " instance " in name}
        left = subprocessesOf(now)
        self.assertEqual((running.stop(), running.processes()), (0, {}))
        until(lambda: not any(map(isAlive, before | left)), "the end of all subprocesses")
