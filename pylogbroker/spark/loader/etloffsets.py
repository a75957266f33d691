"""
The lines of 0.7's Hadoop consumer (L{pylogbroker.cluster.offsetexport}) as beginnings of a load, and the table's positions as such lines.

Lines name brokers by address, the table names them by number; ZooKeeper, or the list of brokers, knows both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pylogbroker.cluster.offsetexport import FROM_EARLIEST, EtlOffset, decodeEtlLines
from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import LoadError
from pylogbroker.types import EARLIEST, PartitionId


def beginningsOf(
    lines: Iterable[str], brokers: Mapping[int, BrokerAddress]
) -> dict[str, dict[str, int]]:
    """
    @param brokers: by number.
    @return: as L{pylogbroker.spark.loader.load} takes them.
    @raise pylogbroker.errors.FormatError: a line is none.
    @raise LoadError: nobody has the address of a line.
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
        found.setdefault(each.topic, {})[f"{number}-{each.partition}"] = (
            EARLIEST if each.offset == FROM_EARLIEST else each.offset
        )
    return found


def linesOf(
    positions: Mapping[PartitionId, int],
    brokers: Mapping[int, BrokerAddress],
    isWanted: Callable[[str], bool] = lambda topic: True,
) -> list[str]:
    """
    @param isWanted: whether a topic must be complete. Of the others in the table, partitions whose broker is not there any more are left out.
    @return: without their ends.
    @raise LoadError: the address of a wanted topic's broker is not known now.
    """
    lines = []
    for place, offset in sorted(positions.items()):
        address = brokers.get(place.partition.broker)
        if address is None:
            if not isWanted(place.topic):
                continue
            raise LoadError(f"{place}: the broker is not there now, and its address is not known")
        lines.append(
            EtlOffset(
                address.host, address.port, place.topic, place.partition.partition, offset
            ).encode()
        )
    return lines
