"""
Sessions and error rates per hour of web servers, from the lines that C{publishlogs.py} has
published: what is new of them is loaded to a table of Parquet files, Spark SQL makes the figures of
the whole table, and a chart shows them.

    python webserver.py warehouse --zookeeper localhost:2181 --registry http://localhost:8081 --json
    report.json --chart report.png

An error rate is the share of errors among all that could have been one (C{loglines.py} says what
that is): of Apache's lines, and of attempts to log in to sshd. A session is what one client does
without a break of more than 30 minutes; it counts in the hour in which it begins. Lines without a
client are in no session.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import date_format

from pylogbroker.spark.avro import fromAvro
from pylogbroker.spark.loader import load, table

HOURS = """
    SELECT topic, date_trunc('HOUR', time) AS hour, count(*) AS lines,
           sum(if(outcome IS NULL, 0, count)) AS attempts,
           sum(if(outcome = 'error', count, 0)) AS errors
      FROM lines GROUP BY topic, date_trunc('HOUR', time)
"""
SESSIONS = """
    SELECT topic, client, min(time) AS begin, max(time) AS end, count(*) AS lines,
           sum(if(outcome = 'error', count, 0)) AS errors
      FROM lines WHERE client IS NOT NULL GROUP BY topic, client, session_window(time, '30 minutes')
"""
REPORT = """
    SELECT topic, hour, lines, attempts, errors, try_divide(errors, attempts) AS errorRate,
           coalesce(sessions, 0) AS sessions
      FROM hours LEFT JOIN (
           SELECT topic, date_trunc('HOUR', begin) AS hour, count(*) AS sessions
             FROM sessions GROUP BY ALL
      ) USING (topic, hour)
     ORDER BY topic, hour
"""
LEVELS = """
    SELECT topic, date_trunc('HOUR', time) AS hour, level, sum(count) AS count
      FROM lines GROUP BY ALL ORDER BY ALL
"""

ISO = "yyyy-MM-dd'T'HH:mm:ss'Z'"
ERROR_COLOUR, REST_COLOUR, SESSION_COLOUR, INK = "#c8452e", "#b9c6d0", "#2c6e9b", "#3a4046"


def withRecords(messages: DataFrame, registry: str) -> DataFrame:
    """
    Messages with the records that are in them. What is none, C{record} is null of: it is loaded all
    the same, and left out of the report.
    """
    return messages.withColumn(
        "record", fromAvro("value", registry=registry, subject="apache-value")
    )


def report(spark: SparkSession, lines: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """
    The figures.

    @param lines: C{topic}, and the fields of C{loglines.SCHEMA}.
    @return: rows by name: C{hours}, C{levels}, C{sessions}.
    """
    lines.cache().createOrReplaceTempView("lines")
    spark.sql(HOURS).createOrReplaceTempView("hours")
    spark.sql(SESSIONS).createOrReplaceTempView("sessions")
    queries = {
        "hours": REPORT,
        "levels": LEVELS,
        "sessions": "SELECT * FROM sessions ORDER BY topic, begin, client",
    }
    return {
        name: [row.asDict() for row in withTextTimes(spark.sql(query)).collect()]
        for name, query in queries.items()
    }


def withTextTimes(frame: DataFrame) -> DataFrame:
    """Times as ISO 8601 has them."""
    return frame.select(
        *(
            date_format(name, ISO).alias(name) if kind == "timestamp" else name
            for name, kind in frame.dtypes
        )
    )


def panel(
    axes: Axes,
    title: str,
    hours: list[datetime],
    series: dict[str, list[float]],
    colours: list[str],
) -> None:
    """Bars, one on the other, an hour wide."""
    below = [0.0] * len(hours)
    for (name, values), colour in zip(series.items(), colours, strict=True):
        axes.bar(
            hours,
            values,
            width=timedelta(minutes=52),
            bottom=below,
            align="edge",
            color=colour,
            label=name,
        )
        below = [low + value for low, value in zip(below, values, strict=True)]
    axes.set_title(title, loc="left", pad=10, fontsize=9, color=INK)
    axes.set_ylim(0, max(below, default=0) * 1.12 or 1)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.grid(axis="y", color="#e6e9ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK, length=0)
    if len(series) > 1:
        axes.legend(
            fontsize=8,
            frameon=False,
            loc="lower right",
            bbox_to_anchor=(1, 0.98),
            ncols=len(series),
            labelcolor=INK,
        )


def chart(hours: list[dict[str, Any]], path: str) -> None:
    """
    Draw what happened in each hour: a column for each topic; errors with what was none, the rate,
    and sessions.

    @param hours: rows of C{report}.
    """
    topics = sorted({row["topic"] for row in hours})
    figure = Figure(figsize=(5.2 * len(topics), 6.4), layout="constrained")
    grid = figure.subplots(3, len(topics), sharex="col", squeeze=False)
    for number, topic in enumerate(topics):
        rows = [row for row in hours if row["topic"] == topic]
        times = [datetime.fromisoformat(row["hour"]) for row in rows]
        top, middle, bottom = grid[:, number]
        events = {
            "errors": [row["errors"] for row in rows],
            "others": [row["attempts"] - row["errors"] for row in rows],
        }
        panel(top, f"{topic}: events per hour", times, events, [ERROR_COLOUR, REST_COLOUR])
        panel(
            middle,
            "error rate, %",
            times,
            {"rate": [100 * (row["errorRate"] or 0) for row in rows]},
            [ERROR_COLOUR],
        )
        panel(
            bottom,
            "sessions that begin",
            times,
            {"sessions": [row["sessions"] for row in rows]},
            [SESSION_COLOUR],
        )
        middle.set(ylim=(0, 105), yticks=(0, 50, 100))
        bottom.xaxis.set_major_formatter(ConciseDateFormatter(bottom.xaxis.get_major_locator()))
    figure.savefig(path, dpi=90, metadata={"Software": None})


def show(hours: list[dict[str, Any]]) -> None:
    """As text."""
    print(f"{'topic':8} {'hour':20} {'lines':>6} {'errors':>6} {'rate':>7} {'sessions':>8}")
    for row in hours:
        rate = "" if row["errorRate"] is None else f"{100 * row['errorRate']:.1f} %"
        print(
            f"{row['topic']:8} {row['hour']:20} {row['lines']:6} {row['errors']:6} {rate:>7}"
            f" {row['sessions']:8}"
        )


def main(options: Namespace) -> None:
    os.environ.setdefault(
        "PYSPARK_PYTHON", sys.executable
    )  # Spark's workers need what this program needs
    spark = (
        SparkSession.builder.appName("webserver")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 4)  # it is not much
        .getOrCreate()
    )
    cluster = {"zookeeper": options.zookeeper, "subscribe": "apache,openssh"}
    load(
        spark,
        options.table,
        transform=partial(withRecords, registry=options.registry),
        eventTime="record.time",
        **cluster,
    )
    lines = table(spark, options.table).where("record IS NOT NULL").select("topic", "record.*")
    found = report(spark, lines)
    show(found["hours"])
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1), encoding="utf-8")
    if options.chart:
        chart(found["hours"], options.chart)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("table", help="the folder to load to; it is made, if need be")
    parser.add_argument(
        "--zookeeper",
        required=True,
        metavar="HOST:PORT[,…][/CHROOT]",
        help="where the brokers are registered",
    )
    parser.add_argument(
        "--registry",
        required=True,
        metavar="URL",
        help="of the schema registry, for instance http://localhost:8081",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write the figures, too: hours, levels and sessions"
    )
    parser.add_argument("--chart", metavar="FILE", help="draw the hours, as PNG, SVG or PDF")
    main(parser.parse_args())
