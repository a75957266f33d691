"""Access control lists: which binding fits to what, and what the table decides."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.acls import (
    ANYONE,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    AclTable,
    PatternType,
    checkPrincipal,
)

TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL
DESCRIBE = AclOperation.DESCRIBE
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
ALICE, BOB = "User:alice", "User:bob"


def binding(
    name: str,
    operation: int = READ,
    permission: int = ALLOW,
    principal: str = ALICE,
    host: str = "*",
    pattern: int = LITERAL,
    resourceType: int = TOPIC,
) -> AclBinding:
    return AclBinding(resourceType, pattern, name, principal, host, operation, permission)


def tableOf(*bindings: AclBinding) -> AclTable:
    table = AclTable()
    for each in bindings:
        table.add(each)
    return table


class FilterTests(SynchronousTestCase):
    """L{AclFilter}."""

    def test_fields(self) -> None:
        """Each field that is given must be the binding's; ANY and no value stand for each."""
        found = binding("orders")
        self.assertTrue(AclFilter().matches(found))
        for same, other in (
            ({"resourceType": TOPIC}, {"resourceType": GROUP}),
            ({"principal": ALICE}, {"principal": BOB}),
            ({"host": "*"}, {"host": "10.0.0.1"}),
            ({"operation": READ}, {"operation": WRITE}),
            ({"permission": ALLOW}, {"permission": DENY}),
            ({"patternType": LITERAL}, {"patternType": PREFIXED}),
            ({"resourceName": "orders"}, {"resourceName": "order"}),
        ):
            self.assertTrue(AclFilter(**same).matches(found), same)
            self.assertFalse(AclFilter(**other).matches(found), other)

    def test_match(self) -> None:
        """MATCH finds what fits to a resource: its name, each name, and prefixes."""
        wanted = AclFilter(patternType=PatternType.MATCH, resourceName="orders")
        for name, pattern, isFitting in (
            ("orders", LITERAL, True),
            ("*", LITERAL, True),
            ("ord", LITERAL, False),
            ("ord", PREFIXED, True),
            ("orders-2", PREFIXED, False),
        ):
            self.assertEqual(wanted.matches(binding(name, pattern=pattern)), isFitting, name)

    def test_onlyBinding(self) -> None:
        """A filter that says everything has one binding, which is the one that it matches."""
        found = binding("orders")
        whole = AclFilter(TOPIC, LITERAL, "orders", ALICE, "*", READ, ALLOW)
        self.assertEqual(whole.binding, found)
        self.assertTrue(whole.matches(found))
        for wide in (
            whole._replace(resourceName=None),
            whole._replace(operation=AclOperation.ANY),
            whole._replace(patternType=PatternType.MATCH),
        ):
            self.assertIsNone(wide.binding)


class TableTests(SynchronousTestCase):
    """L{AclTable}."""

    def test_namesAndPrefixes(self) -> None:
        """A binding holds for its name, for every name, or for what begins so."""
        table = tableOf(
            binding("orders"),
            binding("log-", pattern=PREFIXED),
            binding("*", resourceType=GROUP),
        )
        for resourceType, name, expected in (
            (TOPIC, "orders", True),
            (TOPIC, "orders-2", None),
            (TOPIC, "log-", True),
            (TOPIC, "log-2", True),
            (TOPIC, "log", None),
            (TOPIC, "*", None),
            (GROUP, "any", True),
        ):
            decided = table.decide(ALICE, "h", READ, resourceType, name)
            self.assertEqual(decided, expected, name)

    def test_principalsAndHosts(self) -> None:
        """A binding is for its principal or anyone, from its host or any."""
        table = tableOf(binding("a"), binding("b", principal=ANYONE), binding("c", host="h"))
        for name, principal, host, expected in (
            ("a", ALICE, "h", True),
            ("a", BOB, "h", False),
            ("b", BOB, "h", True),
            ("c", ALICE, "h", True),
            ("c", ALICE, "i", False),
        ):
            self.assertEqual(table.decide(principal, host, READ, TOPIC, name), expected, name)

    def test_denyFirst(self) -> None:
        """What denies wins, wherever it stands."""
        for allowing, denying in (
            (binding("a"), binding("a", permission=DENY)),
            (binding("a", ALL), binding("*", permission=DENY)),
            (binding("*"), binding("a", pattern=PREFIXED, permission=DENY)),
            (binding("a"), binding("a", ALL, DENY, ANYONE)),
        ):
            for order in ((allowing, denying), (denying, allowing)):
                self.assertIs(tableOf(*order).decide(ALICE, "h", READ, TOPIC, "a"), False)

    def test_implied(self) -> None:
        """Reading, writing, deleting and altering is describing, too; but not if it is denied."""
        operation = AclOperation
        describing = (operation.READ, operation.WRITE, operation.DELETE, operation.ALTER)
        for implying, implied in (
            *((each, DESCRIBE) for each in describing),
            (operation.ALTER_CONFIGS, operation.DESCRIBE_CONFIGS),
            (operation.ALL, operation.WRITE),
        ):
            table = tableOf(binding("a", implying))
            self.assertIs(table.decide(ALICE, "h", implied, TOPIC, "a"), True)
        table = tableOf(binding("a", WRITE, DENY), binding("a", DESCRIBE))
        self.assertIs(table.decide(ALICE, "h", DESCRIBE, TOPIC, "a"), True)
        self.assertIs(tableOf(binding("a", DESCRIBE)).decide(ALICE, "h", READ, TOPIC, "a"), False)

    def test_some(self) -> None:
        """Something may be done where an allowed name or prefix has none above it that denies."""
        prefix, no = PREFIXED, DENY
        for bindings, expected in (
            ([], False),
            ([binding("a", WRITE)], True),
            ([binding("a", ALL)], True),
            ([binding("a", READ)], False),
            ([binding("a", WRITE, principal=BOB)], False),
            ([binding("a", WRITE, host="i")], False),
            ([binding("a", WRITE, resourceType=GROUP)], False),
            ([binding("a", WRITE), binding("*", WRITE, no)], False),
            ([binding("*", WRITE), binding("a", WRITE, no)], True),
            ([binding("a", WRITE), binding("a", WRITE, no)], False),
            ([binding("ab", WRITE), binding("a", WRITE, no, pattern=prefix)], False),
            ([binding("ab", WRITE, pattern=prefix), binding("abc", WRITE, no)], True),
            ([binding("b", WRITE), binding("a", WRITE, no, pattern=prefix)], True),
        ):
            table = tableOf(*bindings)
            self.assertIs(table.allowsSome(ALICE, "h", WRITE, TOPIC), expected, bindings)

    bindings = st.builds(
        binding,
        st.sampled_from(["a", "ab", "b", "*"]),
        st.sampled_from([READ, WRITE, ALL, DESCRIBE]),
        st.sampled_from([ALLOW, DENY]),
        st.sampled_from([ALICE, BOB, ANYONE]),
        st.sampled_from(["*", "h"]),
        st.sampled_from([LITERAL, PREFIXED]),
    )

    @given(st.lists(bindings, unique=True), st.data())
    def test_asByLookingAtAll(self, bindings: list[AclBinding], data: st.DataObject) -> None:
        """The table decides as if it looked at each binding, also when some are gone again."""
        table = tableOf(*bindings)
        gone = data.draw(st.lists(st.sampled_from(bindings), unique=True)) if bindings else []
        for each in gone:
            table.remove(each)
        left = [each for each in bindings if each not in gone]
        for name in ("a", "ab", "abc", "b", "c"):
            for operation in (READ, DESCRIBE):
                expected = slowly(left, ALICE, "h", operation, name)
                decided = table.decide(ALICE, "h", operation, TOPIC, name)
                self.assertIs(decided, expected, (name, operation))
        for each in left:
            table.remove(each)
        self.assertFalse(any(any(found.values()) for found in vars(table).values()))


def slowly(
    bindings: Iterable[AclBinding], principal: str, host: str, operation: int, name: str
) -> bool | None:
    """What the rules say, without an index."""
    wanted = AclFilter(TOPIC, PatternType.MATCH, name)
    fitting = [each for each in bindings if wanted.matches(each)]
    mine = [
        each
        for each in fitting
        if each.principal in (principal, ANYONE) and each.host in ("*", host)
    ]
    if any(each.permission == DENY and each.operation in (operation, ALL) for each in mine):
        return False
    allowing = {operation, ALL} | ({READ, WRITE} if operation == DESCRIBE else set())
    if any(each.permission == ALLOW and each.operation in allowing for each in mine):
        return True
    return False if fitting else None


class PrincipalTests(SynchronousTestCase):
    """L{checkPrincipal}."""

    def test_type(self) -> None:
        """A principal has a type."""
        checkPrincipal("User:alice")
        error = self.assertRaises(ValueError, checkPrincipal, "alice")
        self.assertIn("no colon is present", str(error))
