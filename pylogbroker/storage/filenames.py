"""
Names of topics, partition directories and segment files.

The rules are 0.7.2's (spec-0.7 log-storage §1, §12). Forbidden characters are ranges of code
points, so emoji pass; the length counts UTF-16 units, as a JVM does. The file systems' limit of 255
bytes for C{<topic>-<partition>} is checked only before a directory is created (gotcha 21): a fetch
of such a topic is answered like one of any unknown topic. All digits are ASCII (gotcha 20).
"""

from __future__ import annotations

import re

from pylogbroker.errors import InvalidTopicError
from pylogbroker.types import TopicPartition

BATCH_SUFFIX = ".log"
"""Of segments of record batches."""

DELETED_SUFFIX = ".deleted"
"""Behind the whole name of a deleted segment file; 0.7.2 does not load such names, nor do we."""

TOPIC_LENGTH_MAX = 255
DIRECTORY_NAME_SIZE_MAX = 255
PARTITION_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1

_FORBIDDEN = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
_REMOVED = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-delete", re.DOTALL)
_DIRECTORY = re.compile(r"(.+)-([0-9]+)", re.DOTALL)


def validateTopic(name: str, lengthMax: int = TOPIC_LENGTH_MAX) -> None:
    """
    Apply 0.7.2's rules for topic names.

    @param lengthMax: UTF-16 code units (C{max.topic.name.length}).
    @raise InvalidTopicError: the name breaks a rule; the text says which.
    """
    if not name:
        raise InvalidTopicError("the topic name is empty")
    if name in (".", ".."):
        raise InvalidTopicError(f"{name!r} cannot be a topic name")
    length = len(name.encode("utf-16-le", "surrogatepass")) // 2
    if length > lengthMax:
        raise InvalidTopicError(
            f"the topic name {name[:40]!r}… is {length} long, at most {lengthMax} is allowed"
        )
    found = _FORBIDDEN.search(name)
    if found is not None:
        raise InvalidTopicError(
            f"the topic name {name!r} contains U+{ord(found.group()):04X}, which is not allowed"
        )


def directoryName(topicPartition: TopicPartition) -> str:
    """
    C{<topic>-<partition>}.

    @raise InvalidTopicError: the name is too long for a file system.
    """
    name = str(topicPartition)
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > DIRECTORY_NAME_SIZE_MAX:
        raise InvalidTopicError(
            f"the directory of topic {name[:40]!r}… would have a name of {size} bytes,"
            f" at most {DIRECTORY_NAME_SIZE_MAX} can be"
        )
    return name


def parseDirectoryName(name: str) -> TopicPartition | None:
    """
    The partition of a directory, split at the last C{-}.

    @return: L{None}: not a partition's directory. This includes second spellings: C{t-05} beside
        C{t-5}.
    """
    found = _DIRECTORY.fullmatch(name)
    if found is None:
        return None
    topic, digits = found.groups()
    if (len(digits) > 1 and digits[0] == "0") or int(digits) > PARTITION_MAX:
        return None
    return TopicPartition(topic, int(digits))


def removedName(topicPartition: TopicPartition, uniqueId: str) -> str:
    """
    The name of a partition's directory while it is removed, as Kafka's:
    C{<topic>-<partition>.<id>-delete}. A long topic is cut.
    """
    suffix = f"-{topicPartition.partition}.{uniqueId}-delete"
    return topicPartition.topic[: DIRECTORY_NAME_SIZE_MAX - len(suffix)] + suffix


def isRemovedName(name: str) -> bool:
    """Whether a directory is a partition's that was removed."""
    return _REMOVED.fullmatch(name) is not None


def segmentName(baseOffset: int, suffix: str) -> str:
    """Twenty digits and the suffix of the format."""
    return f"{baseOffset:020d}{suffix}"


def parseSegmentName(name: str, suffix: str) -> int | None:
    """The base offset in a segment file's name, with any number of digits, or L{None}."""
    digits = name.removesuffix(suffix)
    if digits == name or not (digits.isascii() and digits.isdigit()):
        return None
    offset = int(digits)
    return offset if offset <= OFFSET_MAX else None
