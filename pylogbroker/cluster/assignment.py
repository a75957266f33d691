"""
Who reads what: 0.7's range assignment (spec-0.7 zookeeper §4.5 f), to the letter.

Every member of a group computes this for itself, from the same lists, and takes its own share. So all must sort alike, 0.7's JVM members included: strings are
compared as Java compares them, by UTF-16 code units, and partitions as the strings C{<broker>-<partition>}, so that C{10-0} comes before C{2-0}.
"""

from __future__ import annotations

from collections.abc import Iterable

from pylogbroker.model import BrokerPartition


def javaOrder(text: str) -> bytes:
    """A sort key for Java's order of strings."""
    return text.encode("utf-16-be", "surrogatepass")


def assign(partitions: Iterable[BrokerPartition], threads: Iterable[str]) -> dict[str, list[BrokerPartition]]:
    """
    Share the partitions of one topic among consumer threads.

    @param threads: ids of all threads in the group that take part in this topic.
    @return: for each thread its partitions, in the order of their names; threads beyond the number of partitions get none.
    """
    names = sorted(partitions, key=str)
    members = sorted(threads, key=javaOrder)
    shares = {}
    for index, thread in enumerate(members):
        each, more = divmod(len(names), len(members))
        start = each * index + min(index, more)
        shares[thread] = names[start : start + each + (index < more)]
    return shares
