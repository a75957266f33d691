"""
What a run will load, from what the brokers say now and how far the table is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pylogbroker.errors import ConfigurationError, LoadError
from pylogbroker.lake.loadplan import LoadPlan, planRanges
from pylogbroker.lake.table import LEVELS
from pylogbroker.spark.offsetmaps import parseOffsets
from pylogbroker.spark.options import SourceOptions
from pylogbroker.spark.partitionbounds import fetchBounds
from pylogbroker.spark.partitiondiscovery import Cluster
from pylogbroker.spark.ranges import checkTopics
from pylogbroker.types import EARLIEST, LATEST, OffsetBounds, PartitionId

StartOffsets = str | Mapping[str, Mapping[str, int]] | None
FOLDER_NAME_SIZE_MAX = 255
"""Bytes, on every file system in use."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(1, 32)))
"""What Spark writes as three signs in the name of a folder (C{ExternalCatalogUtils.escapePathName})."""

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


def parseBeginnings(given: StartOffsets, places: list[PartitionId]) -> dict[PartitionId, int]:
    """
    @param given: C{"earliest"}, C{"latest"}, or offsets by topic and partition, as JSON or as values.
    @param places: what is to be loaded, which the words mean.
    @raise ConfigurationError: it is something else.
    """
    if not given:
        return {}
    if isinstance(given, str) and given.lower() in _WORDS:
        return dict.fromkeys(places, _WORDS[given.lower()])
    try:
        text = given if isinstance(given, str) else json.dumps(given)
    except TypeError as error:
        raise ConfigurationError(f"beginnings={given!r}: {error}") from error
    found = parseOffsets("beginnings", text)
    return {
        PartitionId(topic, partition): offset
        for topic, offsets in found.items()
        for partition, offset in offsets.items()
    }


def checkFolder(topic: str) -> None:
    """
    @raise LoadError: there can be no folder for this topic, which Spark would say when all is read.
    """
    size = len(LEVELS[0]) + sum(
        3 if sign in _ESCAPED else len(sign.encode("utf-8", "surrogatepass")) for sign in topic
    )
    if size > FOLDER_NAME_SIZE_MAX:
        raise LoadError(
            f"topic {topic}: the name is too long for a folder, which would be called by {size} bytes of {FOLDER_NAME_SIZE_MAX} that it may have"
        )


def planLoad(
    options: SourceOptions, positions: Mapping[PartitionId, int], beginnings: StartOffsets = None
) -> LoadPlan:
    """
    Ask the brokers, and plan. A partition that the table has and that nobody has now is left alone, with a note: its broker is away, and it goes on when
    that is back.

    @raise PylogbrokerError: a broker cannot be asked, a topic is not there, or a partition cannot be loaded as it ought to be.
    """
    expected = [place for place in positions if place.topic in options.selection.topics]
    with Cluster(options.cluster) as cluster:
        places = cluster.places(options.selection, expected)
        for topic in dict.fromkeys(place.topic for place in places):
            checkFolder(topic)
        with cluster.brokers(place.partition.broker for place in places) as brokers:
            found = {place: fetchBounds(brokers, *place) for place in places}
            checkTopics(options, brokers, found)
    bounds = {place: OffsetBounds(each.earliest, each.latest) for place, each in found.items()}
    plan = planRanges(
        positions, bounds, parseBeginnings(beginnings, places), isLossFatal=options.failOnDataLoss
    )
    topics = {place.topic for place in places}
    missing = [
        place for place in sorted(positions) if place.topic in topics and place not in bounds
    ]
    away = [
        f"{place}: nobody has this partition now; it goes on when its broker is back"
        for place in missing
    ]
    return LoadPlan(plan.ranges, (*plan.notes, *away))
