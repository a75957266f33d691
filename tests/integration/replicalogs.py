"""
Compares the logs of replicas after a trial, byte for byte, in the directories of brokers that have
stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path


def differences(
    folders: Mapping[int, Path], whole: Iterable[str], beginnings: Iterable[str] = ()
) -> tuple[int, list[str]]:
    """
    @param folders: the log directory of each broker.
    @param whole: directories of partitions that must be the same everywhere.
    @param beginnings: those of which a replica may have less: brokers do not stop at once, so the
        last one may have more about groups and transactions.
    @return: how many bytes all replicas have alike, and what is wrong.
    """
    count = 0
    wrong = []
    for partitions, mayEndEarlier in ((whole, False), (beginnings, True)):
        for partition in partitions:
            found = {number: logOf(folder / partition) for number, folder in folders.items()}
            longest = max(found.values(), key=len)
            count += min(map(len, found.values()))
            for number, each in found.items():
                same = _commonCount(each, longest)
                if same < (len(each) if mayEndEarlier else len(longest)):
                    wrong.append(
                        f"the log of {partition} of broker {number} has {len(each)} bytes, and"
                        f" another one {len(longest)}; the first {same} are the same"
                    )
    return count, wrong


def logOf(directory: Path) -> bytes:
    """The segments of a partition, in order."""
    return b"".join(each.read_bytes() for each in sorted(directory.glob("*.log")))


def _commonCount(one: bytes, other: bytes) -> int:
    """How many bytes at the beginning are the same."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
