"""
Tests for L{pylogbroker.topologies.master.state}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.topologies.master.state import VALUE_COUNT_MAX, MasterState
from pylogbroker.topologies.messages import (
    INSTANCE,
    METRICS_MANAGER,
    STREAM_MANAGER,
    Hello,
    Metrics,
    PlanPushed,
    Refused,
    Welcome,
)
from pylogbroker.topologies.plan import ACTIVE, PAUSED
from tests.topologies.definitions import PACKING

EPOCH = 3 << 32


class MasterStateTests(SynchronousTestCase):
    """Hellos, plans and metrics; connections are letters."""

    def setUp(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.dropped: list[str] = []
        self.master: MasterState[str] = MasterState(
            "words",
            PACKING,
            ACTIVE,
            EPOCH,
            77,
            lambda peer, message: self.sent.append((peer, message)),
            self.dropped.append,
        )

    def hello(self, peer: str, container: int, address: str = "", **fields: Any) -> None:
        role = fields.pop("role", STREAM_MANAGER)
        hello = Hello("words", role, container, 5, address=address or f"host:{container}", **fields)
        self.master.hello(peer, hello)

    def plans(self) -> list[tuple[str, int]]:
        """Who has got a plan since the last call, and the change of its epoch."""
        sent, self.sent = self.sent, []
        return [
            (peer, message.plan.epoch - EPOCH)
            for peer, message in sent
            if isinstance(message, PlanPushed)
        ]

    def test_complete(self) -> None:
        """The plan comes when the last stream manager is there, and has its address."""
        self.hello("a", 1)
        self.assertEqual(self.sent, [("a", Welcome(77))])
        self.assertEqual(self.master.status()["missing"], [2])
        self.hello("b", 2)
        self.assertEqual(self.plans(), [("a", 1), ("b", 1)])
        plan = self.master.plan
        assert plan is not None
        self.assertEqual(plan.streamManagers, {1: "host:1", 2: "host:2"})
        self.assertEqual((plan.topology, plan.state, plan.packing), ("words", ACTIVE, PACKING))

    def test_comesBack(self) -> None:
        """
        One that comes back at its old address gets the plan that there is; at another address all
        get a new one. While it is gone the plan stays.
        """
        self.hello("a", 1)
        self.hello("b", 2)
        self.plans()
        self.master.lost("b")
        self.assertEqual(self.plans(), [])
        self.hello("c", 2)
        self.assertEqual(self.plans(), [("c", 1)])
        self.hello("d", 2, "host:3")
        self.assertEqual(self.dropped, ["c"])
        self.assertEqual(self.plans(), [("a", 2), ("d", 2)])
        self.master.lost("c")  # its end is noticed late
        self.master.stateChanged(PAUSED)
        self.assertEqual(self.plans(), [("a", 3), ("d", 3)])

    def test_state(self) -> None:
        """A change of the state is a new plan; a state that is there already is none."""
        self.hello("a", 1)
        self.master.stateChanged(PAUSED)
        self.hello("b", 2)
        self.assertEqual(self.plans(), [("a", 1), ("b", 1)])
        self.master.stateChanged(PAUSED)
        self.assertEqual(self.plans(), [])
        self.master.stateChanged(ACTIVE)
        self.assertEqual(self.plans(), [("a", 2), ("b", 2)])

    def test_refused(self) -> None:
        """What does not belong here is told why, and dropped."""
        for fields, reason in (
            ({"topology": "other"}, "not of other"),
            ({"role": INSTANCE}, "role 'instance'"),
            ({"id": 3}, "no container 3"),
            ({"address": ""}, "where it can be reached"),
        ):
            values: dict[str, Any] = {
                "topology": "words",
                "role": STREAM_MANAGER,
                "id": 1,
                "incarnation": 5,
                "address": "host:1",
                **fields,
            }
            self.master.hello("x", Hello(**values))
            [(peer, message)] = self.sent
            self.assertEqual((peer, self.dropped.pop()), ("x", "x"))
            assert isinstance(message, Refused)
            self.assertIn(reason, message.reason)
            self.sent.clear()
            self.master.lost("x")
        self.assertEqual(self.master.status()["missing"], [1, 2])

    def test_suspended(self) -> None:
        """Without a sure session no plan goes out; what has changed meanwhile comes with it."""
        self.hello("a", 1)
        self.hello("b", 2)
        self.plans()
        self.master.suspend()
        self.master.stateChanged(PAUSED)
        self.hello("c", 1)
        self.assertEqual(self.plans(), [])
        self.master.resume()
        self.assertEqual(sorted(self.plans()), [("b", 2), ("c", 2)])

    def test_deposed(self) -> None:
        """It drops all, and never acts again."""
        self.hello("a", 1)
        self.hello("b", 2)
        self.hello("m", 2, role=METRICS_MANAGER)
        self.plans()
        self.master.depose()
        self.assertEqual(sorted(self.dropped), ["a", "b", "m"])
        self.master.resume()
        self.master.stateChanged(PAUSED)
        self.master.lost("a")
        self.assertEqual(self.sent, [])
        self.hello("d", 1)
        [(_peer, message)] = self.sent
        self.assertIsInstance(message, Refused)

    def metrics(self, container: int, source: str, **values: float) -> Metrics:
        return Metrics(container, source, "bolt", 5, 1_000, values)

    def shown(self) -> dict[tuple[int, str], dict[str, float]]:
        return {
            (each["container"], each["source"]): each["values"]
            for each in self.master.status()["metrics"]
        }

    def test_metrics(self) -> None:
        """
        The last ones of each process are kept. Those of a process that the container does not
        have, of another container, from another role, or too many, are not.
        """
        self.hello("m", 2, role=METRICS_MANAGER)
        self.hello("a", 1)
        self.master.metrics("m", self.metrics(2, "2", emitted=1))
        self.master.metrics("m", self.metrics(2, "2", emitted=2))
        self.master.metrics("m", self.metrics(2, STREAM_MANAGER, dropped=0))
        expected = {(2, "2"): {"emitted": 2}, (2, STREAM_MANAGER): {"dropped": 0}}
        for peer, metrics in (
            ("m", self.metrics(2, "1", emitted=5)),
            ("m", self.metrics(1, "2", emitted=5)),
            ("a", self.metrics(1, "1", emitted=5)),
            ("x", self.metrics(2, "2", emitted=5)),
            ("m", self.metrics(2, "2", **{f"v{n}": 0.0 for n in range(VALUE_COUNT_MAX + 1)})),
        ):
            self.master.metrics(peer, metrics)
        self.assertEqual(self.shown(), expected)
        self.master.lost("m")
        self.assertEqual(self.shown(), expected)

    def test_status(self) -> None:
        """What tools get."""
        self.hello("a", 1)
        status = self.master.status()
        self.assertEqual(
            {key: status[key] for key in ("topology", "state", "epoch", "isActing")},
            {"topology": "words", "state": ACTIVE, "epoch": EPOCH, "isActing": True},
        )
        self.assertEqual(
            [(each["number"], each["isConnected"]) for each in status["containers"]],
            [(1, True), (2, False)],
        )
        self.hello("b", 2)
        self.assertEqual(self.master.status()["epoch"], EPOCH + 1)

    def connected(self) -> list[int]:
        """The instances that are connected, as tools get them."""
        return [
            instance["task"]
            for each in self.master.status()["containers"]
            for instance in each["instances"]
            if instance["isConnected"]
        ]

    def test_connectedInstances(self) -> None:
        """
        An instance is connected when the stream manager of its container has said so last, which
        is connected itself.
        """
        self.hello("a", 2)
        self.hello("m", 2, role=METRICS_MANAGER)
        self.assertEqual(self.connected(), [])
        self.master.metrics("m", self.metrics(2, STREAM_MANAGER, **{"connected.2": 1}))
        self.assertEqual(self.connected(), [2])
        self.master.metrics("m", self.metrics(2, STREAM_MANAGER, **{"connected.2": 0}))
        self.assertEqual(self.connected(), [])
        self.master.metrics("m", self.metrics(2, STREAM_MANAGER, **{"connected.2": 1}))
        self.master.lost("a")
        self.assertEqual(self.connected(), [])
        self.master.hello("b", Hello("words", STREAM_MANAGER, 2, 6, address="host:2"))
        self.assertEqual(self.connected(), [])  # it was said by the former process
