"""
When a message was made, as columns that Spark computes by itself, without a row ever seeing Python.

The rule, in this order, each where the one before knows nothing: the audit envelope's time (L{pylogbroker.audit.envelope}); the message's own timestamp,
which formats of 2011 do not have; the time of the run. Who names a column or expression has that instead of the first two.

A time before 1970, or more than a day behind the start of the run, is nobody's: it would put a file of its own into a folder that nobody looks for. Such
rows, too, have the time of the run, and are counted with those that have none.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import DateType, NumericType, StringType, TimestampNTZType, TimestampType

from pylogbroker.audit.envelope import HEAD_SIZE, MAGIC, VERSION
from pylogbroker.errors import ConfigurationError

AHEAD_MS_MAX = 24 * 3_600_000
DEFAULT_RULE = "the envelope's time, else the message's timestamp, else the time of the run"
_BEGINNING = MAGIC + bytes((VERSION,))


class EnvelopeColumns(NamedTuple):
    """
    What is in the envelope around a payload. Null where there is none.

    @ivar timeMs: milliseconds since the epoch.
    @ivar host: where the message was made.
    @ivar payload: what is in it; of what is no envelope, the bytes as they are.
    """

    timeMs: Column
    host: Column
    payload: Column


def envelope(value: Column) -> EnvelopeColumns:
    """Look into envelopes; the same as L{pylogbroker.audit.envelope} says."""
    hostSize = sql.conv(sql.hex(sql.substring(value, HEAD_SIZE, 1)), 16, 10).cast("int")
    isOne = (sql.substring(value, 1, len(_BEGINNING)) == sql.lit(_BEGINNING)) & (
        sql.length(value) >= hostSize + HEAD_SIZE
    )
    timeMs = sql.conv(sql.hex(sql.substring(value, len(_BEGINNING) + 1, 8)), 16, -10).cast("long")
    host = sql.make_valid_utf8(value.substr(sql.lit(HEAD_SIZE + 1), hostSize).cast("string"))
    payload = value.substr(hostSize + (HEAD_SIZE + 1), sql.length(value))
    return EnvelopeColumns(
        sql.when(isOne, timeMs), sql.when(isOne, host), sql.when(isOne, payload).otherwise(value)
    )


def eventMs(rows: DataFrame, expression: str | Column | None) -> Column:
    """
    The time of each row, in milliseconds since the epoch; null where nobody knows it.

    @param rows: with the source's columns, and perhaps more.
    @param expression: a column, its name, or an expression of SQL: a timestamp, a date, a text that is one, or a number of milliseconds; L{None}: the rule
        above.
    @raise ConfigurationError: it is something else.
    """
    if expression is None:
        return sql.coalesce(envelope(rows["value"]).timeMs, sql.unix_millis(rows["timestamp"]))
    column = sql.expr(expression) if isinstance(expression, str) else expression
    kind = rows.select(column).schema[0].dataType
    if isinstance(kind, NumericType):
        return column.try_cast(
            "long"
        )  # null for what is no number or none that fits, where a plain cast would fail the run, and each that follows
    if isinstance(kind, StringType):
        return sql.unix_millis(sql.try_to_timestamp(column))
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        return sql.unix_millis(column.cast("timestamp"))
    raise ConfigurationError(
        f"the event time {expression} is of type {kind.simpleString()}, and no timestamp, date, text or number of milliseconds"
    )


def withEventTime(rows: DataFrame, expression: str | Column | None, startedMs: int) -> DataFrame:
    """
    Rows with C{eventTime}, C{isArrival} (nobody knows it, and it is the time of the run), C{host} (null without an envelope), C{date} and C{hour}, both of UTC.

    @param startedMs: when the run began.
    """
    known = eventMs(rows, expression)
    isKnown = sql.coalesce(known.between(0, startedMs + AHEAD_MS_MAX), sql.lit(False))
    timeMs = sql.when(isKnown, known).otherwise(sql.lit(startedMs))
    hours = sql.floor(timeMs / 3_600_000)
    return rows.withColumns(
        {
            "eventTime": sql.timestamp_millis(timeMs),
            "isArrival": ~isKnown,
            "host": envelope(rows["value"]).host,
            "date": sql.date_from_unix_date(sql.floor(hours / 24).cast("int")),
            "hour": sql.pmod(hours, sql.lit(24)).cast("int"),
        }
    )
