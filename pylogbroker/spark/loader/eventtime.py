"""
The event time of messages, as columns that Spark computes without Python. A module of its own,
since programs use L{envelope} on tables.

The rule, in this order: the time of the audit envelope (L{pylogbroker.audit.envelope}); the
timestamp of the message, which formats of 2011 do not have; the time of the run. A column or
expression of the user replaces the first two.

A time before 1970, or more than a day after the start of the run, counts as unknown: its file would
lie in a folder that no query reads. Such rows also get the time of the run.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import DateType, NumericType, StringType, TimestampNTZType, TimestampType

from pylogbroker.audit.envelope import HEAD_SIZE, MAGIC, VERSION
from pylogbroker.errors import ConfigurationError

AHEAD_MS_MAX = 24 * 3_600_000
_BEGINNING = MAGIC + bytes((VERSION,))


class EnvelopeColumns(NamedTuple):
    """
    The parts of an audit envelope; null without an envelope.

    @ivar timeMs: milliseconds since 1970.
    @ivar host: that made the message.
    @ivar payload: the message inside; without an envelope, the whole message.
    """

    timeMs: Column
    host: Column
    payload: Column


def envelope(value: Column) -> EnvelopeColumns:
    """Decode envelopes, as L{pylogbroker.audit.envelope} does."""
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
    The time of each row, in milliseconds since 1970; null if it is unknown.

    @param rows: with the source's columns, and perhaps more.
    @param expression: a column, its name, or SQL: a timestamp, a date, a text of one, or a number
        of milliseconds; L{None}: the rule above.
    @raise ConfigurationError: the expression has another type.
    """
    if expression is None:
        return sql.coalesce(envelope(rows["value"]).timeMs, sql.unix_millis(rows["timestamp"]))
    column = sql.expr(expression) if isinstance(expression, str) else expression
    kind = rows.select(column).schema[0].dataType
    if isinstance(kind, NumericType):
        # A number that is not a time becomes null; a plain cast would fail this and all later runs.
        return column.try_cast("long")
    if isinstance(kind, StringType):
        return sql.unix_millis(sql.try_to_timestamp(column))
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        return sql.unix_millis(column.cast("timestamp"))
    raise ConfigurationError(
        f"the event time {expression} is of type {kind.simpleString()}, not a timestamp, date,"
        " text or"
        " number of milliseconds"
    )


def withEventTime(rows: DataFrame, expression: str | Column | None, startedMs: int) -> DataFrame:
    """
    Rows with the columns C{eventTime}, C{isArrival} (C{eventTime} is the time of the run), C{host}
    (null without an envelope), and C{date} and C{hour} in UTC.

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
