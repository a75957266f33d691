"""Tests of L{pylogbroker.cluster.znodes}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster import znodes
from pylogbroker.cluster.metadata import GetChildren, ZnodeWarnings
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.errors import ZnodeError
from pylogbroker.types import BrokerPartition


class BrokerTests(SynchronousTestCase):
    """C{/brokers/ids/N}."""

    def test_recorded(self) -> None:
        """The value that 0.7.2 wrote is read, and written, to the byte."""
        value = b"127.0.0.1-1795194782704:127.0.0.1:29095"
        registration = znodes.decodeBroker("/brokers/ids/0", value)
        self.assertEqual(
            registration, BrokerRegistration("127.0.0.1-1795194782704", "127.0.0.1", 29095)
        )
        self.assertEqual(registration.encode(), value)
        self.assertEqual(znodes.creatorId("127.0.0.1", 1795194782704), registration.creatorId)

    def test_moreFields(self) -> None:
        """What stands behind the port does not count, as for 0.7's JVM clients."""
        self.assertEqual(znodes.decodeBroker("/b", b"c:h:1:2"), BrokerRegistration("c", "h", 1))

    def test_colon(self) -> None:
        """An IPv6 literal cannot be written."""
        self.assertIn(
            "IPv6", str(self.assertRaises(ValueError, BrokerRegistration("c", "::1", 1).encode))
        )

    def test_noHost(self) -> None:
        """What nobody would read as a host is not written."""
        self.assertIn(
            "'ev[il'",
            str(self.assertRaises(ValueError, BrokerRegistration("c", "ev[il", 1).encode)),
        )

    def test_hosts(self) -> None:
        """
        A host is a name or an IPv4 address, whatever else the word may mean somewhere; anything
        else is refused here, before somebody connects to it.
        """
        for host in ("log1", "log-1.example.org.", "my_host", "10.0.0.5", "unix", "tcp"):
            self.assertEqual(znodes.decodeBroker("/b", f"c:{host}:1".encode()).host, host)
        for host in ("ev[il", "a=b", "a b", "a/b", "a\\", "h\n", "{host}", "h\u00f6st", "]" * 1000):
            error = self.assertRaises(
                ZnodeError, znodes.decodeBroker, "/brokers/ids/7", f"c:{host}:1".encode()
            )
            self.assertIn("is not a host", str(error))
            self.assertLess(len(str(error)), 400)

    def test_garbage(self) -> None:
        """What is no broker's value is refused with its path and value."""
        for value in (
            None,
            b"",
            b"h:1",
            b"c::1",
            b"c:h:x",
            b"c:h:0",
            b"c:h:65536",
            b"c:h:99999999999",
            b"c:h:-1",
            b"\xff",
            b"x" * 1000,
        ):
            error = self.assertRaises(ZnodeError, znodes.decodeBroker, "/brokers/ids/7", value)
            self.assertIn("/brokers/ids/7", str(error))
            self.assertLess(len(str(error)), 300)
            self.assertEqual(error.path, "/brokers/ids/7")


class NumberTests(SynchronousTestCase):
    """Counts and offsets."""

    def test_roundTrip(self) -> None:
        """They are decimal."""
        for number in (0, 2, 282, -1, 2**63 - 1):
            self.assertEqual(znodes.decodeNumber("/o", znodes.encodeNumber(number)), number)
        self.assertEqual(znodes.encodeNumber(282), b"282")

    def test_garbage(self) -> None:
        """Anything else is refused."""
        for value in (
            None,
            b"",
            b" 1",
            b"1_0",
            b"0x1",
            b"1.0",
            b"9" * 30,
            b"9223372036854775808",
            "١".encode(),
        ):
            self.assertRaises(ZnodeError, znodes.decodeNumber, "/o", value)


class CountTests(SynchronousTestCase):
    """How many partitions a topic has on a broker."""

    def test_range(self) -> None:
        """From none to very many."""
        for count in (0, 1, znodes.PARTITION_COUNT_MAX):
            self.assertEqual(znodes.decodeCount("/t/0", b"%d" % count), count)
        for value in (b"-1", b"%d" % (znodes.PARTITION_COUNT_MAX + 1), b"many"):
            self.assertIn(
                "/t/0", str(self.assertRaises(ZnodeError, znodes.decodeCount, "/t/0", value))
            )


class BrokerNumberTests(SynchronousTestCase):
    """The names of brokers' nodes."""

    def test_names(self) -> None:
        """
        A number as a broker writes it, and nothing else; every other name is reported, and the
        numbers count.
        """
        reports: list[str] = []
        names = ("0", "10", "2147483647", "", "01", "-1", "1x", "one", "99999999999", "١")
        node = GetChildren("/brokers/ids", znodes.decodeBrokerNumber)
        self.assertEqual(node.decoded(names, ZnodeWarnings(reports.append)), [0, 10, 2**31 - 1])
        self.assertEqual(
            [text.partition(" ")[0] for text in reports],
            [f"/brokers/ids/{name}" for name in names[3:]],
        )


class PartitionTests(SynchronousTestCase):
    """C{<broker>-<partition>}."""

    def test_name(self) -> None:
        """It reads back as it is written."""
        self.assertEqual(
            znodes.decodePartition("/o/t/10-2", str(BrokerPartition(10, 2))), BrokerPartition(10, 2)
        )

    def test_garbage(self) -> None:
        """Anything else is refused."""
        for name in ("", "1", "-1", "1-", "1-2-3", "a-b", "1--2"):
            self.assertRaises(ZnodeError, znodes.decodePartition, "/o", name)
