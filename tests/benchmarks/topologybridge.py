"""
What a tuple costs on its way through a subprocess of C{pystorm}, in the word count of C{sparse
quickstart}: a part of L{tests.benchmarks.topologies}. A module of its own, since it starts
processes.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from typing import NamedTuple

from pylogbroker.topologies.multilang.definitions import loadAnyTopologies
from pylogbroker.topologies.topology import StreamId
from tests.topologies.instance.instances import Instances, withSink
from tests.topologies.multilang.test_definitions import quickstart


class BridgeFigures(NamedTuple):
    """
    Microseconds of the processor for a word that is emitted by a spout, counted by one of two
    bolts, and emitted again.

    @ivar instances: in our instances, spout and bolts.
    @ivar subprocesses: in those of C{pystorm}.
    @ivar perSecond: words in a second of the clock, on this machine.
    """

    instances: float
    subprocesses: float
    perSecond: float


def bridgeCosts(count: int) -> BridgeFigures:
    """
    Count words; what starting costs is taken off.

    @raise RuntimeError: a word is counted wrongly.
    """
    started, whole = _spent(1), _spent(count)
    ours, theirs, elapsed, words = (
        after - before for before, after in zip(started, whole, strict=True)
    )
    return BridgeFigures(ours * 1e6 / words, theirs * 1e6 / words, words / elapsed)


def _spent(count: int) -> tuple[float, float, float, int]:
    """Seconds of the processor here and in the subprocesses, of the clock, and how many words."""
    path = quickstart() / "topologies" / "wordcount.py"
    topology = loadAnyTopologies(str(path))["wordcount"]
    instances = Instances(withSink(topology, StreamId("count_bolt")), True)
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        ours, begun = time.process_time(), time.monotonic()
        instances.run(lambda: instances.countOf("count_bolt") >= count)
        ours, elapsed = time.process_time() - ours, time.monotonic() - begun
    finally:
        instances.close()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    counts: Counter[str] = Counter()
    for word, number in instances.values("count_bolt"):
        counts[word] += 10 if word == "dog" else 1
        if number != counts[word]:
            raise RuntimeError(f"{word} was counted {number} times and not {counts[word]}")
    spent = ended.ru_utime - theirs.ru_utime + ended.ru_stime - theirs.ru_stime
    return ours, spent, elapsed, instances.countOf("count_bolt")
