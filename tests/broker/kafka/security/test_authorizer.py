"""What the authorizer decides, remembers, counts and logs."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.protocol import ConnectionState
from pylogbroker.broker.kafka.security import authorizer
from pylogbroker.broker.kafka.security.authorizer import AclAuthorizer
from pylogbroker.cluster.acls import (
    AclBinding,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)

TOPIC, CLUSTER = AclResourceType.TOPIC, AclResourceType.CLUSTER
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
ALICE = "User:alice"


def binding(name: str, operation: int = READ, host: str = "*", permission: int = 3) -> AclBinding:
    return AclBinding(TOPIC, PatternType.LITERAL, name, ALICE, host, operation, permission)


def client(principal: str = ALICE, host: str = "10.0.0.1") -> ConnectionState:
    state = ConnectionState(StringTransport(peerAddress=IPv4Address("TCP", host, 5)))
    state.principal = principal
    return state


class AuthorizerTests(SynchronousTestCase):
    """L{AclAuthorizer}."""

    def setUp(self) -> None:
        self.acls: dict[AclBinding, None] = {}
        self.clock = Clock()
        self.lines: list[Any] = []
        observer: Any = self.observe
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def observe(self, event: Any) -> None:
        if event.get("log_namespace", "").startswith(AclAuthorizer.__module__):
            self.lines.append(event)

    def made(self, *bindings: AclBinding, allowsUnlisted: bool = False) -> AclAuthorizer:
        self.acls = dict.fromkeys(bindings)
        return AclAuthorizer(
            lambda: self.acls, frozenset(("User:admin",)), allowsUnlisted, self.clock
        )

    def test_superUsers(self) -> None:
        """A super user may do everything, whatever denies it."""
        deny = binding("a")._replace(principal="User:*", permission=AclPermission.DENY)
        made = self.made(deny)
        self.assertTrue(made.allows(client("User:admin"), READ, TOPIC, "a"))
        self.assertTrue(made.allowsSome(client("User:admin"), WRITE, TOPIC))
        self.assertFalse(made.allows(client(), READ, TOPIC, "a"))

    def test_unlisted(self) -> None:
        """A resource without a list is nobody's, or everybody's if the broker says so."""
        for allowsUnlisted in (False, True):
            made = self.made(binding("a", WRITE), allowsUnlisted=allowsUnlisted)
            self.assertIs(made.allows(client(), READ, TOPIC, "b"), allowsUnlisted)
            self.assertIs(made.allowsSome(client(), READ, TOPIC), allowsUnlisted)
            self.assertFalse(made.allows(client(), READ, TOPIC, "a"))

    def test_changes(self) -> None:
        """The next decision knows of a change of the lists."""
        made = self.made()
        self.assertFalse(made.allows(client(), READ, TOPIC, "a"))
        self.acls = dict.fromkeys((binding("a"), binding("b")))
        self.assertTrue(made.allows(client(), READ, TOPIC, "a"))
        self.acls = dict.fromkeys((binding("b"),))
        self.assertFalse(made.allows(client(), READ, TOPIC, "a"))
        self.assertTrue(made.allows(client(), READ, TOPIC, "b"))

    def test_hosts(self) -> None:
        """A list can be for one address."""
        made = self.made(binding("a", host="10.0.0.1"))
        self.assertTrue(made.allows(client(), READ, TOPIC, "a"))
        self.assertFalse(made.allows(client(host="10.0.0.2"), READ, TOPIC, "a"))

    def test_operations(self) -> None:
        """What may be done is a bit for each operation."""
        made = self.made(binding("a"))
        self.assertEqual(made.operations(client(), TOPIC, "a"), 1 << READ | 1 << DESCRIBE)
        self.assertEqual(made.operations(client(), CLUSTER), 0)

    def test_memoryIsBounded(self) -> None:
        """Decisions are remembered up to a number, those of long names never."""
        self.patch(authorizer, "DECISION_COUNT_MAX", 3)
        made = self.made(binding("a"))
        for number in range(10):
            made.allows(client(), READ, TOPIC, f"t{number}")
            made.allows(client(), READ, TOPIC, "x" * 300 + str(number))
            self.assertLessEqual(len(vars(made)["_decisions"]), 3)
        self.assertTrue(made.allows(client(), READ, TOPIC, "a"))

    def test_refusals(self) -> None:
        """A refusal is counted, and logged once; beyond a number at a limited rate."""
        self.patch(authorizer, "LOGGED_COUNT_MAX", 1)
        made = self.made()
        for name in ("a", "a", "b", "c"):
            self.assertFalse(made.requires(client(), READ, TOPIC, name))
        made.allows(client(), READ, TOPIC, "d")
        self.assertEqual(made.refusedCount, 4)
        self.assertEqual([event["resource"] for event in self.lines], ["'a'", "'a'"])
        self.assertEqual(self.lines[0]["principal"], "'User:alice'")
