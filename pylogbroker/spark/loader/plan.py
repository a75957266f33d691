"""
What a run loads: the positions of the table, the bounds of the logs, and the user's start offsets.

Start offsets may come from lines of 0.7's Hadoop consumer (L{pylogbroker.cluster.offsetexport}),
and positions may be written as such lines. The lines name brokers by address, the table by id;
ZooKeeper or the list of brokers translates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from pylogbroker.cluster.offsetexport import FROM_EARLIEST, EtlOffset, decodeEtlLines
from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import ConfigurationError, LoadError
from pylogbroker.lake.loadplan import LoadPlan, planRanges
from pylogbroker.lake.table import LEVELS
from pylogbroker.spark.brokerclients import fetchBounds
from pylogbroker.spark.options import SourceOptions, parseOffsets
from pylogbroker.spark.partitiondiscovery import PartitionDiscovery
from pylogbroker.spark.splits import checkTopics
from pylogbroker.types import EARLIEST, LATEST, OffsetBounds, PartitionId

StartOffsets = str | Mapping[str, Mapping[str, int]] | None
FOLDER_NAME_SIZE_MAX = 255
"""Bytes, on every common file system."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(1, 32)))
"""
Characters that Spark writes as three in a folder name (C{ExternalCatalogUtils.escapePathName}).
"""

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


def parseStartOffsets(given: StartOffsets, partitions: list[PartitionId]) -> dict[PartitionId, int]:
    """
    @param given: C{"earliest"}, C{"latest"}, or offsets by topic and partition, as JSON or values.
    @param partitions: to load; the words apply to them.
    @raise ConfigurationError: it has another form.
    """
    if not given:
        return {}
    if isinstance(given, str) and given.lower() in _WORDS:
        return dict.fromkeys(partitions, _WORDS[given.lower()])
    try:
        text = given if isinstance(given, str) else json.dumps(given)
    except TypeError as error:
        raise ConfigurationError(f"startOffsets={given!r}: {error}") from error
    found = parseOffsets("startOffsets", text)
    return {
        PartitionId(topic, partition): offset
        for topic, offsets in found.items()
        for partition, offset in offsets.items()
    }


def checkFolder(topic: str) -> None:
    """
    @raise LoadError: the topic's name is too long for a folder. Spark would fail after reading all.
    """
    size = len(LEVELS[0]) + sum(
        3 if char in _ESCAPED else len(char.encode("utf-8", "surrogatepass")) for char in topic
    )
    if size > FOLDER_NAME_SIZE_MAX:
        raise LoadError(
            f"topic {topic}: the name is too long for a folder, which would have a name of"
            f" {size} bytes; {FOLDER_NAME_SIZE_MAX} are allowed"
        )


def planLoad(
    options: SourceOptions,
    positions: Mapping[PartitionId, int],
    startOffsets: StartOffsets = None,
) -> LoadPlan:
    """
    Ask the brokers, and plan. A partition that no broker has now is left for later, with a note.

    @param positions: where the table ends, by partition.
    @raise PylogbrokerError: a broker does not answer, a topic does not exist, or a partition cannot
        be loaded.
    """
    expected = [each for each in positions if each.topic in options.selection.topics]
    with PartitionDiscovery(options.cluster) as cluster:
        partitions = cluster.partitions(options.selection, expected)
        topics = dict.fromkeys(each.topic for each in partitions)
        for topic in topics:
            checkFolder(topic)
        with cluster.brokers(each.partition.broker for each in partitions) as brokers:
            found = {each: fetchBounds(brokers, *each) for each in partitions}
            checkTopics(options, brokers, found)
    plan = planRanges(
        positions,
        {key: OffsetBounds(bounds.earliest, bounds.latest) for key, bounds in found.items()},
        parseStartOffsets(startOffsets, partitions),
        isLossFatal=options.failOnDataLoss,
    )
    missing = [each for each in sorted(positions) if each.topic in topics and each not in found]
    away = [
        f"{each}: no broker has this partition now; it is loaded when its broker is back"
        for each in missing
    ]
    return LoadPlan(plan.ranges, (*plan.notes, *away))


# -- the lines of 0.7's Hadoop consumer


def startOffsetsOf(
    lines: Iterable[str], brokers: Mapping[int, BrokerAddress]
) -> dict[str, dict[str, int]]:
    """
    Start offsets for L{pylogbroker.spark.loader.load}.

    @param brokers: by id.
    @raise pylogbroker.errors.FormatError: a line cannot be decoded.
    @raise LoadError: no broker has the address of a line.
    """
    numbers = {(address.host, address.port): number for number, address in brokers.items()}
    found: dict[str, dict[str, int]] = {}
    for each in decodeEtlLines(lines):
        number = numbers.get((each.host, each.port))
        if number is None:
            known = ", ".join(f"{host}:{port}" for host, port in sorted(numbers)) or "none"
            raise LoadError(
                f"tcp://{each.host}:{each.port}: there is no such broker now; there are {known}"
            )
        offset = EARLIEST if each.offset == FROM_EARLIEST else each.offset
        found.setdefault(each.topic, {})[f"{number}-{each.partition}"] = offset
    return found


def linesOf(
    positions: Mapping[PartitionId, int],
    brokers: Mapping[int, BrokerAddress],
    isWanted: Callable[[str], bool] = lambda topic: True,
) -> list[str]:
    """
    Lines of the table's positions, without line ends.

    @param isWanted: whether a topic must be complete. Of other topics, partitions whose broker is
        gone are left out.
    @raise LoadError: the address of a wanted topic's broker is unknown.
    """
    lines = []
    for key, offset in sorted(positions.items()):
        address = brokers.get(key.partition.broker)
        if address is None:
            if not isWanted(key.topic):
                continue
            raise LoadError(f"{key}: its broker is not there now, so its address is unknown")
        number = key.partition.partition
        lines.append(EtlOffset(address.host, address.port, key.topic, number, offset).encode())
    return lines
