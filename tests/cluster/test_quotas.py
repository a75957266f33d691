"""Client quotas: whose they are, which counts, and how rates are measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.quotas import (
    CLIENT_KEYS,
    CONTROLLER_MUTATION_RATE,
    IP_KEYS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    THROTTLE_MS_MAX,
    FoundQuota,
    QuotaTable,
    SampledRate,
    TokenBucket,
    checkQuota,
    entityOf,
    keysOf,
)

COUNT, WINDOW_MS = 11, 1000


class EntityTests(SynchronousTestCase):
    """L{keysOf}, L{checkQuota} and L{entityOf}."""

    def test_entities(self) -> None:
        """Users and clients, alone or together, have one kind of quotas, addresses another."""
        for names in ({"user": "u"}, {"client-id": None}, {"user": None, "client-id": "c"}):
            self.assertIs(keysOf(names), CLIENT_KEYS)
        for address in ("10.1.2.3", "::1", None):
            self.assertIs(keysOf({"ip": address}), IP_KEYS)

    def test_noEntities(self) -> None:
        """Nothing, other types, empty names, mixtures and names of hosts are refused."""
        for names, text in (
            ({}, "Invalid empty"),
            ({"group": "g"}, "Unhandled client quota entity type: group"),
            ({"user": ""}, "Empty user not supported"),
            ({"ip": "::1", "user": "u"}, "Invalid quota entity combination"),
            ({"ip": "localhost"}, "localhost is not a valid IP"),
        ):
            self.assertIn(text, str(self.assertRaises(ValueError, keysOf, names)))

    def test_values(self) -> None:
        """A value is positive, and whole where its key says so, and not too large."""
        checkQuota(CLIENT_KEYS, PRODUCER_BYTE_RATE, 1e9)
        checkQuota(CLIENT_KEYS, REQUEST_PERCENTAGE, 0.5)
        for keys, key, value, text in (
            (CLIENT_KEYS, "nonsense", 1.0, "Invalid configuration key nonsense"),
            (CLIENT_KEYS, PRODUCER_BYTE_RATE, 0.0, "must be greater than 0"),
            (CLIENT_KEYS, PRODUCER_BYTE_RATE, float("nan"), "must be greater than 0"),
            (CLIENT_KEYS, PRODUCER_BYTE_RATE, 1.5, "cannot be a fractional value"),
            (CLIENT_KEYS, PRODUCER_BYTE_RATE, 1e19, "too large for a LONG"),
            (CLIENT_KEYS, REQUEST_PERCENTAGE, float("inf"), "too large for a DOUBLE"),
            (IP_KEYS, "connection_creation_rate", 3e9, "too large for an INT"),
        ):
            error = self.assertRaises(ValueError, checkQuota, keys, key, value)
            self.assertIn(text, str(error))


class TableTests(SynchronousTestCase):
    """L{QuotaTable}."""

    def test_precedence(self) -> None:
        """The most special entity counts, and says who shares the rate."""
        order: list[tuple[dict[str, str | None], tuple[str, str]]] = [
            ({"user": "u", "client-id": "c"}, ("u", "c")),
            ({"user": "u", "client-id": None}, ("u", "c")),
            ({"user": "u"}, ("u", "")),
            ({"user": None, "client-id": "c"}, ("u", "c")),
            ({"user": None, "client-id": None}, ("u", "c")),
            ({"user": None}, ("u", "")),
            ({"client-id": "c"}, ("", "c")),
            ({"client-id": None}, ("", "c")),
        ]
        quotas = {
            entityOf(names): {PRODUCER_BYTE_RATE: float(bound)}
            for bound, (names, _) in enumerate(order, 1)
        }
        for bound, (names, shared) in enumerate(order, 1):
            found = QuotaTable(quotas).find(PRODUCER_BYTE_RATE, "u", "c")
            self.assertEqual(found, FoundQuota(float(bound), *shared))
            del quotas[entityOf(names)]
        self.assertIsNone(QuotaTable(quotas).find(PRODUCER_BYTE_RATE, "u", "c"))

    def test_otherKeys(self) -> None:
        """An entity without the quota does not hide one that has it."""
        quotas = {
            entityOf({"user": "u"}): {REQUEST_PERCENTAGE: 5.0},
            entityOf({"client-id": "c"}): {PRODUCER_BYTE_RATE: 7.0},
        }
        found = QuotaTable(quotas).find(PRODUCER_BYTE_RATE, "u", "c")
        self.assertEqual(found, FoundQuota(7.0, "", "c"))
        self.assertIsNone(QuotaTable(quotas).find(CONTROLLER_MUTATION_RATE, "u", "c"))

    def test_addresses(self) -> None:
        """An address has its own quota, or the default one."""
        key = "connection_creation_rate"
        quotas = {entityOf({"ip": "10.0.0.1"}): {key: 5.0}}
        self.assertEqual(QuotaTable(quotas).ofAddress("10.0.0.1"), 5.0)
        self.assertIsNone(QuotaTable(quotas).ofAddress("10.0.0.2"))
        quotas[entityOf({"ip": None})] = {key: 6.0}
        self.assertEqual(QuotaTable(quotas).ofAddress("10.0.0.2"), 6.0)


class RateTests(SynchronousTestCase):
    """L{SampledRate}."""

    def test_burst(self) -> None:
        """What ten windows allow may come at once; beyond it is throttled until it is average."""
        rate = SampledRate(100, COUNT, WINDOW_MS)
        self.assertEqual(rate.throttleMs(0), 0)
        rate.add(1000, 0)
        self.assertEqual(rate.throttleMs(0), 0)
        rate.add(500, 0)
        self.assertEqual(rate.throttleMs(0), 5000)

    def test_passing(self) -> None:
        """Time takes windows along, the oldest first."""
        rate = SampledRate(100, COUNT, WINDOW_MS)
        rate.add(1500, 0)
        rate.add(1500, 5500)
        self.assertEqual(rate.throttleMs(5500), round((3000 / 10.5 - 100) / 100 * 10_500))
        self.assertEqual(rate.throttleMs(11_000), round((1500 / 10 - 100) / 100 * 10_000))
        self.assertEqual(rate.throttleMs(20_000), 0)

    def test_takenBack(self) -> None:
        """What was not done after all does not count."""
        rate = SampledRate(1, COUNT, WINDOW_MS)
        rate.add(1500, 0)
        rate.add(-1500, 0)
        self.assertEqual(rate.throttleMs(0), 0)

    def test_oneWindow(self) -> None:
        """A single window that has just begun counts as a whole one."""
        rate = SampledRate(10, 1, WINDOW_MS)
        rate.add(30, 0)
        self.assertEqual(rate.throttleMs(0), 2000)

    @given(
        st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 1000)), max_size=60),
        st.integers(1, 12),
    )
    def test_memory(self, steps: list[tuple[int, int]], count: int) -> None:
        """There are never more samples than windows."""
        rate = SampledRate(50, count, WINDOW_MS)
        nowMs = 0
        for passed, amount in steps:
            nowMs += passed
            rate.add(amount, nowMs)
            self.assertGreaterEqual(rate.throttleMs(nowMs), 0)
            self.assertLessEqual(len(rate._samples), count)

    def test_extremes(self) -> None:
        """The smallest and the largest quota give a time that a response can tell."""
        for bound in (5e-324, 1e300):
            rate, bucket = SampledRate(bound, COUNT, WINDOW_MS), TokenBucket(bound, COUNT, 1000, 0)
            for nowMs in (0, 0, 5000):
                rate.add(1e6, nowMs)
                bucket.add(1e6, nowMs)
                for found in (rate.throttleMs(nowMs), bucket.throttleMs(nowMs)):
                    self.assertEqual(found, THROTTLE_MS_MAX if bound < 1 else 0)

    @given(st.lists(st.integers(1, 3000), min_size=40, max_size=40))
    def test_obeyed(self, amounts: list[int]) -> None:
        """A client that waits as long as it is told keeps to its quota, but for one burst."""
        rate = SampledRate(100, COUNT, WINDOW_MS)
        nowMs, total = 0, 0
        for amount in amounts:
            rate.add(amount, nowMs)
            total += amount
            nowMs += rate.throttleMs(nowMs)
        self.assertLessEqual(total, 2 * (100 * (nowMs / 1000 + COUNT) + max(amounts)))


class BucketTests(SynchronousTestCase):
    """L{TokenBucket}."""

    def test_tokens(self) -> None:
        """A full bucket can be overdrawn once; then its debt must be paid."""
        bucket = TokenBucket(2, COUNT, WINDOW_MS, 0)
        self.assertEqual(bucket.throttleMs(0), 0)
        bucket.add(22, 0)
        self.assertEqual(bucket.throttleMs(0), 0)
        bucket.add(3, 0)
        self.assertEqual(bucket.throttleMs(0), 1500)
        self.assertEqual(bucket.throttleMs(1000), 500)
        self.assertEqual(bucket.throttleMs(1500), 0)

    def test_full(self) -> None:
        """A bucket does not hold more than all windows give."""
        bucket = TokenBucket(2, COUNT, WINDOW_MS, 0)
        self.assertEqual(bucket.throttleMs(3_600_000), 0)
        bucket.add(24, 3_600_000)
        self.assertEqual(bucket.throttleMs(3_600_000), 1000)
