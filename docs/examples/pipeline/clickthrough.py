"""
The click-through rate of each campaign, live: ads shown and ads clicked come from two topics, and
rates go to a third.

What C{adtraffic.py} sends is counted in windows of the time at which ads were shown, with Spark's
own windows and watermark; which campaign an ad belongs to is looked up in a table that does not
change. A window's rates are published when it is over: when nothing is expected any more that
belongs to it.

    python clickthrough.py --zookeeper localhost:2181 --checkpoint /var/tmp/clickthrough

Ended and started again with the same checkpoint, it goes on where it was.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import (
    coalesce,
    col,
    count_if,
    date_format,
    from_json,
    lit,
    struct,
    timestamp_millis,
    to_json,
    try_divide,
    window,
)

ISO = "yyyy-MM-dd'T'HH:mm:ss'Z'"


def campaignRates(
    messages: DataFrame, ads: DataFrame, windowText: str, delayText: str
) -> DataFrame:
    """
    Count.

    @param messages: of the topics C{impressions} and C{clicks}.
    @param ads: which C{campaign} an C{ad} belongs to.
    @param windowText: how long a window is.
    @param delayText: how late an event may be, compared with the latest one.
    @return: C{key} and C{value} of messages to publish. What is no event of ours is left out.
    """
    event = from_json(col("value").cast("string"), "ad string, shown long")
    events = messages.select("topic", event.alias("event")).where(
        "event.ad IS NOT NULL AND event.shown IS NOT NULL"
    )
    return (
        events.select("topic", "event.ad", timestamp_millis("event.shown").alias("shown"))
        .withWatermark("shown", delayText)
        .join(ads, "ad", "left")
        .groupBy(window("shown", windowText), coalesce("campaign", lit("none")).alias("campaign"))
        .agg(
            count_if(col("topic") == "impressions").alias("impressions"),
            count_if(col("topic") == "clicks").alias("clicks"),
        )
        .select(
            col("campaign").cast("binary").alias("key"),
            to_json(
                struct(
                    "campaign",
                    date_format("window.start", ISO).alias("begin"),
                    date_format("window.end", ISO).alias("end"),
                    "impressions",
                    "clicks",
                    try_divide("clicks", "impressions").alias("rate"),
                )
            )
            .cast("binary")
            .alias("value"),
        )
    )


def main(options: Namespace) -> None:
    os.environ.setdefault(
        "PYSPARK_PYTHON", sys.executable
    )  # Spark's workers need what this program needs
    spark = (
        SparkSession.builder.appName("clickthrough")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)  # a few campaigns
        .getOrCreate()
    )
    ads = spark.read.schema("ad string, campaign string").csv(str(options.ads), header=True)
    source = spark.readStream.format("pylogbroker").option("zookeeper", options.zookeeper)
    messages = (
        source.option("subscribe", "impressions,clicks")
        .option("startingOffsets", "earliest")
        .load()
    )
    rates = campaignRates(messages, ads, options.window, options.delay)
    sink = (
        rates.writeStream.format("pylogbroker")
        .option("zookeeper", options.zookeeper)
        .option("topic", options.topic)
    )
    query = sink.option("checkpointLocation", options.checkpoint).outputMode("append").start()
    print("rates are being counted", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--zookeeper",
        required=True,
        metavar="HOST:PORT[,…][/CHROOT]",
        help="where the brokers are registered",
    )
    parser.add_argument(
        "--checkpoint", required=True, metavar="FOLDER", help="where Spark keeps how far it is"
    )
    parser.add_argument(
        "--ads",
        default=Path(__file__).with_name("ads.csv"),
        help="a table with the columns ad and campaign (ads.csv, beside this program)",
    )
    parser.add_argument("--topic", default="rates", help="where to publish (%(default)s)")
    parser.add_argument("--window", default="10 seconds", help="how long to count (%(default)s)")
    parser.add_argument(
        "--delay", default="10 seconds", help="how late an event may be (%(default)s)"
    )
    main(parser.parse_args())
