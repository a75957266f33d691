"""
Mistakes that are planted into the machinery of topologies, to see that their simulation finds them.
Each is one that Heron's paper or Storm's acker is against, or that was made here first, and found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogbroker.topologies.acktrees import AckTrees
from pylogbroker.topologies.connection import TopologyConnection
from pylogbroker.topologies.instance.collectors import BoltCollector
from pylogbroker.topologies.instance.runners import SpoutRunner
from pylogbroker.topologies.link import LinkReceiver, LinkSender
from pylogbroker.topologies.messages import Hello, Welcome
from pylogbroker.topologies.plan import PhysicalPlan
from pylogbroker.topologies.streammanager.ends import BatchSource, InstanceEnd, _Sender
from pylogbroker.topologies.streammanager.manager import StreamManager
from tests.simulation.seeds import Plant

_begin = LinkSender.begin
_gathered = LinkSender._gathered
_newRoots = BoltCollector._newRoots
_setPlan = StreamManager.setPlan


def takesAgain(self: LinkReceiver, number: int, size: int) -> bool:
    """A batch is taken as often as it comes."""
    self.received = max(number, self.received)
    self._waiting.append((number, size))
    return True


def sendsToAnother(self: LinkSender, isSameReceiver: bool, received: int) -> None:
    """What is not confirmed is sent again, also to another process."""
    _begin(self, True, received if isSameReceiver else self._confirmed)


def forgetsTheUnconfirmed(self: LinkSender, isSameReceiver: bool, received: int) -> None:
    """What was sent on a connection that is lost is not sent again."""
    _begin(self, isSameReceiver, self.number if isSameReceiver else received)


def gathersBackwards(self: LinkSender) -> tuple[list[bytes | memoryview], int, int]:
    """The last of what waits is sent first."""
    self._chunks.reverse()
    return _gathered(self)


def sendsBeforeTheWelcome(self: LinkSender) -> None:
    """A new connection is written to before the other end has said what it has."""


def acceptsGaps(self: LinkReceiver, number: int, size: int) -> bool:
    """A batch is taken though one before it is not there."""
    if number <= self.received:
        return False
    self.received = number
    self._waiting.append((number, size))
    return True


def completesEarly(self: AckTrees, numbers: Sequence[int]) -> list[int]:
    """A tree is completed by its first acknowledgement."""
    completed = []
    for root in numbers[::2]:
        for bucket in self._buckets:
            if bucket.pop(root, None) is not None:
                completed.append(root)
    return completed


def sharesAnEdge(self: BoltCollector, anchors: Sequence[Any]) -> list[int]:
    """A tuple with two anchors is announced to the tree of the first alone."""
    return _newRoots(self, anchors[:1])


def takesOlderPlans(self: StreamManager, plan: PhysicalPlan) -> None:
    """A plan is taken of any epoch."""
    self._epochMin, self.plan = 0, None
    _setPlan(self, plan)


def settlesNothingLater(self: InstanceEnd) -> None:
    """What was not confirmed while spouts stood still never is."""


def greetsAll(self: BatchSource, connection: TopologyConnection, hello: Hello) -> None:
    """The hello that arrives last counts, whenever it was said."""
    if hello.incarnation != self._current.incarnation:
        self._current = _Sender(hello.incarnation)
    former, self._connection = self._connection, connection
    if former is not None:
        former.abort("it has connected again")
    connection.send(Welcome(self._manager.incarnation, self._current.receiver.received))


def believesAll(self: LinkSender, isSameReceiver: bool, received: int) -> None:
    """What a receiver says that it has is believed, though it has confirmed more."""
    self._confirmed = 0
    _begin(self, isSameReceiver, received)


def failsAgain(self: SpoutRunner, roots: Sequence[int]) -> None:
    """A spout's tuple that has failed is still pending."""
    for root in roots:
        if root in self._pending:
            self.component.fail(self._pending[root][0])


PLANTS = {
    "batches that count as often as they come": Plant(
        "Heron's paper", "twice", 0, [(LinkReceiver, "accept", takesAgain)]
    ),
    "batches that are sent again to another process": Plant(
        "made here", "twice", 13, [(LinkSender, "begin", sendsToAnother)]
    ),
    "batches that are not sent again": Plant(
        "made here", "is lost", 2, [(LinkSender, "begin", forgetsTheUnconfirmed)]
    ),
    "the last that waits is sent first": Plant(
        "made here", "behind", 0, [(LinkSender, "_gathered", gathersBackwards)]
    ),
    "batches before the welcome": Plant(
        "made here",
        "is lost",
        84,
        [
            (LinkSender, "end", sendsBeforeTheWelcome),
            (LinkReceiver, "accept", acceptsGaps),
        ],
    ),
    "a tree that is completed by its first acknowledgement": Plant(
        "Storm's acker", "is acknowledged without", 1, [(AckTrees, "acknowledge", completesEarly)]
    ),
    "a tuple in the tree of its first anchor alone": Plant(
        "Storm's acker", "is acknowledged without", 16, [(BoltCollector, "_newRoots", sharesAnEdge)]
    ),
    "older plans": Plant(
        "Heron's paper", "and has", 356, [(StreamManager, "setPlan", takesOlderPlans)]
    ),
    "confirmations that are withheld for good": Plant(
        "made here", "no rest", 47, [(InstanceEnd, "tellPressure", settlesNothingLater)]
    ),
    "a hello that arrives behind a later one": Plant(
        "made here, and found",
        "no rest",
        2050,
        [(BatchSource, "begin", greetsAll), (LinkSender, "begin", believesAll)],
    ),
    "a spout's tuple that fails again": Plant(
        "made here", "and was failed", 1, [(SpoutRunner, "_failThose", failsAgain)]
    ),
}
