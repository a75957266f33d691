"""
Tests for L{pylogbroker.spark.loader.eventtime}.
"""

from __future__ import annotations

from random import Random
from typing import Any

from pylogbroker.audit.envelope import (
    HEAD_SIZE,
    MAGIC,
    decodeEnvelope,
    envelopeTime,
    hostBytes,
    unwrapEnvelope,
)
from pylogbroker.errors import ConfigurationError
from pylogbroker.spark.loader.eventtime import AHEAD_MS_MAX, envelope, withEventTime
from tests.spark.loader.cases import NOW_MS, SparkCase, packed

HOUR_MS = 3_600_000


class EnvelopeTests(SparkCase):
    """Spark's own look into envelopes."""

    def test_same(self) -> None:
        """
        Of whole, cut, damaged and foreign bytes it finds the same time, host and payload as
        Python's.
        """
        random = Random(5)
        values = [b"", MAGIC, b"\xffplb" + bytes(20), packed(-1), packed(2**63 - 1, b"", b"")]
        values += [packed(-(2**63), b"p" * 300, b"h" * 255), packed(7, b"x", hostBytes("größe"))]
        for _value in range(300):
            whole = packed(
                random.randrange(-(2**63), 2**63),
                random.randbytes(random.randrange(9)),
                b"h" * random.randrange(20),
            )
            cut = whole[: random.randrange(len(whole) + 1)]
            values.append(
                random.choice(
                    (
                        whole,
                        cut,
                        random.randbytes(30),
                        MAGIC + random.randbytes(random.randrange(2 * HEAD_SIZE)),
                    )
                )
            )
        rows = self.rows(values)
        columns = envelope(rows["value"])
        found = rows.select(columns.timeMs, columns.host, columns.payload).collect()
        for value, (timeMs, host, payload) in zip(values, found, strict=True):
            self.assertEqual(timeMs, envelopeTime(value), value)
            self.assertEqual(bytes(payload), unwrapEnvelope(value))
            self.assertEqual(host, None if timeMs is None else decodeEnvelope(value).host)

    def test_foreignHost(self) -> None:
        """A host that is no UTF-8 does no harm."""
        rows = self.rows([packed(5, b"x", b"a\xff\xfeb")])
        [[host]] = rows.select(envelope(rows["value"]).host).collect()
        self.assertEqual((host[0], host[-1], "\ufffd" in host), ("a", "b", True))


class EventTimeTests(SparkCase):
    """The time of rows."""

    def found(self, rows: Any, expression: Any = None) -> list[tuple[int, bool, str, int]]:
        """Milliseconds, whether they are the run's, date and hour."""
        timed = withEventTime(rows, expression, NOW_MS)
        return [
            tuple(row)
            for row in timed.selectExpr(
                "unix_millis(eventTime)", "isArrival", "string(date)", "hour"
            ).collect()
        ]

    def test_rule(self) -> None:
        """
        The envelope's time; without one that of the run, and this is said. Times that cannot be
        count as none.
        """
        times = (NOW_MS - HOUR_MS, 0, NOW_MS + AHEAD_MS_MAX, NOW_MS + AHEAD_MS_MAX + 1, -1)
        here = (NOW_MS, True, "2026-01-01", 13)
        self.assertEqual(
            self.found(self.rows([packed(time) for time in times] + [b"plain"])),
            [
                (NOW_MS - HOUR_MS, False, "2026-01-01", 12),
                (0, False, "1970-01-01", 0),
                (NOW_MS + AHEAD_MS_MAX, False, "2026-01-02", 13),
                here,
                here,
                here,
            ],
        )

    def test_timestamp(self) -> None:
        """
        A message's own timestamp counts where there is no envelope; dates and hours are those of
        UTC, whatever the session's zone is.
        """
        self.spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        self.addCleanup(self.spark.conf.unset, "spark.sql.session.timeZone")
        rows = (
            self.rows([b"plain", packed(3 * HOUR_MS)])
            .selectExpr("*")
            .withColumn("timestamp", self.sql("timestamp_millis(7200000)"))
        )
        self.assertEqual(
            self.found(rows),
            [(2 * HOUR_MS, False, "1970-01-01", 2), (3 * HOUR_MS, False, "1970-01-01", 3)],
        )

    def sql(self, text: str) -> Any:
        from pyspark.sql.functions import expr

        return expr(text)

    def test_expressions(self) -> None:
        """
        A timestamp, a date, a text, a number of milliseconds, whole or not; null and nonsense are
        the time of the run.
        """
        rows = self.rows([b"7200000"])
        for expression, hour in (
            ("timestamp_millis(7200000)", 2),
            ("timestamp_ntz'1970-01-01 02:00:00'", 2),
            ("date'1970-01-01'", 0),
            ("cast(value as string)", 13),
            ("'1970-01-01T02:00:00Z'", 2),
            ("bigint(cast(value as string))", 2),
            ("7200000.7d", 2),
            ("offset", 0),
            ("cast(null as timestamp)", 13),
            ("'soon'", 13),
        ):
            [(_ms, isArrival, _date, found)] = self.found(rows, expression)
            self.assertEqual((found, isArrival), (hour, hour == 13), expression)
        self.assertEqual(self.found(rows, self.sql("offset"))[0][:2], (0, False))

    def test_numbers(self) -> None:
        """
        Milliseconds may be a decimal, too. A number that is none, is not finite or is too large for
        a time is the time of the run, and fails nothing.
        """
        self.spark.conf.set("spark.sql.ansi.enabled", "true")
        self.addCleanup(self.spark.conf.unset, "spark.sql.ansi.enabled")
        rows = self.rows([b"7200000.7", b"NaN", b"Infinity", b"-Infinity", b"1e300", b"-1e300"])
        run = (NOW_MS, True)
        for kind in ("double", "float"):
            found = self.found(rows, f"cast(cast(value as string) as {kind})")
            self.assertEqual(
                [each[:2] for each in found], [(7_200_000, False), run, run, run, run, run]
            )
        for number, expected in (("7200000.7", (7_200_000, False)), ("1" + "0" * 25, run)):
            self.assertEqual(
                self.found(self.rows([b"x"]), f"cast('{number}' as decimal(38, 2))")[0][:2],
                expected,
            )

    def test_wrong(self) -> None:
        """What is no time is refused."""
        self.assertIn(
            "of type binary",
            str(self.assertRaises(ConfigurationError, self.found, self.rows([b"x"]), "value")),
        )
