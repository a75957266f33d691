"""
A slow bolt under back pressure, on the simulator's clock: no tuple is dropped, what waits is
bounded, the topology keeps the bolt's rate, no other bolt's tuples wait behind it, and all
recovers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.topologysimulator import TopologySimulator
from pylogbroker.topologies.api import Bolt, Grouping, Spout, StreamTuple, TopologyContext
from pylogbroker.topologies.streammanager.settings import StreamManagerSettings
from pylogbroker.topologies.topology import StreamId, Topology, TopologyBuilder

SLOW_SECONDS = 0.01
"""Of the slow bolt, for a tuple: 100 times that of the others."""

SETTINGS = StreamManagerSettings(
    highWaterMark=20_000, lowWaterMark=10_000, instanceWindow=8_000, peerWindow=8_000
)
PAYLOAD = "x" * 50


class PairSpout(Spout):
    """Emits a number on both of its streams, as fast as it may."""

    outputs: ClassVar[Any] = {
        "slow": ["number", "seconds", "payload"],
        "fast": ["number", "seconds"],
    }

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """From the beginning."""
        self.count = 0
        self.isEnded = False
        self.seconds = context.seconds

    def nextTuple(self) -> None:
        """The next one."""
        if not self.isEnded:
            self.count += 1
            self.emit([self.count, self.seconds(), PAYLOAD], stream="slow")
            self.emit([self.count, self.seconds()], stream="fast")


class OrderBolt(Bolt):
    """Sees that nothing is missing."""

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """From the beginning."""
        self.lasts: dict[int, int] = {}
        self.count = 0
        self.waitMax = 0.0
        self.seconds = context.seconds

    def process(self, tup: StreamTuple) -> None:
        """
        The next one of its spout.

        @raise ValueError: it is not the next one.
        """
        if tup["number"] != self.lasts.get(tup.task, 0) + 1:
            raise ValueError(f"{tup!r} behind {self.lasts}")
        self.lasts[tup.task] = tup["number"]
        self.count += 1
        self.waitMax = max(self.waitMax, self.seconds() - tup["seconds"])
        self.ack(tup)


def pairs(mode: str) -> Topology:
    """Two spouts, a slow bolt, and one that is not."""
    config = {
        "topology.reliability.mode": mode,
        "topology.max.spout.pending": 10_000,
        "topology.message.timeout.secs": 60,
    }
    builder = TopologyBuilder("pairs", config)
    builder.setSpout("spout", PairSpout, 2)
    builder.setBolt("slow", OrderBolt, 1, {StreamId("spout", "slow"): Grouping.GLOBAL})
    builder.setBolt("fast", OrderBolt, 1, {StreamId("spout", "fast"): Grouping.GLOBAL})
    return builder.build()


class SlowBoltTests(SynchronousTestCase):
    """A bolt takes a hundred times as long as the others."""

    def run_(self, mode: str) -> None:
        """Have it slow for two minutes, then let it catch up, and be fast."""
        service = {"slow": SLOW_SECONDS}
        with TopologySimulator(
            pairs(mode), 3, serviceSeconds=service, settings=SETTINGS
        ) as simulator:
            simulator.advance(5)
            [slow], [fast] = simulator.components("slow"), simulator.components("fast")
            spouts = simulator.components("spout")
            before = slow.count
            queuedMax = 0.0
            for _ in range(240):
                simulator.advance(0.5)
                queuedMax = max(queuedMax, self.queued(simulator))
            rate = (slow.count - before) / 120
            self.assertGreater(rate, 0.9 / SLOW_SECONDS)
            self.assertLess(queuedMax, 3 * SETTINGS.highWaterMark)
            self.assertLess(fast.waitMax, 0.1)  # though a tuple for the slow one waits for minutes
            self.assertGreater(slow.waitMax, 1.0)
            self.assertLess(abs(fast.count - slow.count) * len(PAYLOAD), queuedMax * 2)
            values = self.values(simulator)
            self.assertGreater(values["backpressure.ms.slow"], 100_000)
            self.assertNotIn("backpressure.ms.fast", values)
            self.assertEqual(simulator.failures, [])
            for spout in spouts:
                spout.isEnded = True
            total = sum(spout.count for spout in spouts)
            simulator.advanceUntil(lambda: slow.count == total, 600, 1.0)
            simulator.advance(1)
            self.assertEqual(fast.count, total)
            self.assertEqual(self.queued(simulator), 0)
            for name, value in self.values(simulator).items():
                self.assertFalse(value and ("dropped" in name or "lost" in name), name)
            for manager in simulator.streamManagers.values():
                self.assertFalse(manager.areSpoutsStopped)
            for spout in spouts:
                spout.isEnded = False
            before = fast.count
            simulator.advance(0.2)
            self.assertGreater(fast.count - before, 500)

    def queued(self, simulator: TopologySimulator) -> float:
        """Bytes that wait in all stream managers, or are under way from them."""
        values = self.values(simulator)
        return sum(
            value
            for name, value in values.items()
            if name.startswith(("queued.bytes.", "unconfirmed.bytes."))
        )

    def values(self, simulator: TopologySimulator) -> dict[str, float]:
        """The sums of what stream managers count."""
        sums: dict[str, float] = {}
        for manager in simulator.streamManagers.values():
            for name, value in manager.metricValues().items():
                sums[name] = sums.get(name, 0) + value
        return sums

    def test_atMostOnce(self) -> None:
        """Without acknowledgements, only back pressure holds spouts back."""
        self.run_("ATMOST_ONCE")

    def test_atLeastOnce(self) -> None:
        """With acknowledgements, too, and no tuple fails."""
        self.run_("ATLEAST_ONCE")
