"""
Responses with errors that a test has injected (L{pylogbroker.testing.faults.faultinjector}); a
module of its own, since only this one knows where each kind of request and response names its
topics.

Three ways to a response, by the kind of the request:

  - L{SPLIT}: it changes something. What is refused is taken out of it, the rest is handled as
    always, and the refusals are put into the response.
  - L{MARKED}: it only reads. It is handled, and the errors are put over what was found.
  - all others have one error for the whole request, and are not handled at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pylogbroker.interfaces import Slice
from pylogbroker.net.sendfile import ResponsePart, releaseSlices
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.protocol.kafka.responses import encodeResponse
from pylogbroker.protocol.kafka.schemas import ZERO_UUID, ApiMessage

CodeOf = Callable[[str | None, int | None], int]
"""
C{codeOf(topic, partition)}: the error for a place in a request, or 0. The partition is L{None} for
the topic as a whole, and so is the topic for a request that names none.
"""

NameOf = Callable[[bytes], str | None]
"""The name of a topic, by its id."""


class _Layout(NamedTuple):
    """
    Where a request that is split names what it changes, and where its response does.

    @ivar asked: the fields of the topics, and of the partitions in one.
    @ivar answered: the same in the response.
    @ivar structs: the classes of the elements there.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    structs: tuple[str, ...]


_PLACES = ("topics", "partitions")

SPLIT = {
    ApiKey.PRODUCE: _Layout(
        ("topicData", "partitionData"),
        ("responses", "partitionResponses"),
        ("TopicProduceResponse", "PartitionProduceResponse"),
    ),
    ApiKey.OFFSET_COMMIT: _Layout(
        _PLACES, _PLACES, ("OffsetCommitResponseTopic", "OffsetCommitResponsePartition")
    ),
    ApiKey.TXN_OFFSET_COMMIT: _Layout(
        _PLACES, _PLACES, ("TxnOffsetCommitResponseTopic", "TxnOffsetCommitResponsePartition")
    ),
    ApiKey.OFFSET_DELETE: _Layout(
        _PLACES, _PLACES, ("OffsetDeleteResponseTopic", "OffsetDeleteResponsePartition")
    ),
    ApiKey.DELETE_RECORDS: _Layout(
        _PLACES, _PLACES, ("DeleteRecordsTopicResult", "DeleteRecordsPartitionResult")
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: _Layout(
        ("v3AndBelowTopics", "partitions"),
        ("resultsByTopicV3AndBelow", "resultsByPartition"),
        ("AddPartitionsToTxnTopicResult", "AddPartitionsToTxnPartitionResult"),
    ),
    ApiKey.CREATE_TOPICS: _Layout(("topics",), ("topics",), ("CreatableTopicResult",)),
    ApiKey.CREATE_PARTITIONS: _Layout(("topics",), ("results",), ("CreatePartitionsTopicResult",)),
    ApiKey.DELETE_TOPICS: _Layout(("topics",), ("responses",), ("DeletableTopicResult",)),
    ApiKey.DELETE_GROUPS: _Layout(("groupsNames",), ("results",), ("DeletableGroupResult",)),
    ApiKey.ALTER_CONFIGS: _Layout(
        ("resources",), ("responses",), ("AlterConfigsResourceResponse",)
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Layout(
        ("resources",), ("responses",), ("AlterConfigsResourceResponse",)
    ),
}

MARKED = frozenset(
    (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
    )
)

LED = frozenset(
    (
        ApiKey.DELETE_RECORDS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.PRODUCE,
    )
)
"""Requests that only the leader of a partition answers."""

_TOPIC_FIELDS = ("topics", "topicData", "topicNames", "v3AndBelowTopics")
_PARTITION_FIELDS = ("partitions", "partitionData", "partitionIndexes")
_INDEX_FIELDS = ("partitionIndex", "partitionId", "partition", "index")
_NAME_FIELDS = ("name", "topic", "resourceName")
_KEPT_FIELDS = (
    *(*_INDEX_FIELDS, *_NAME_FIELDS, "topicId", "isInternal", "groupId", "key", "resourceType"),
    *("transactionalId", "logDir"),
)
_MISSING_FIELDS = ("baseOffset", "committedOffset", "highWatermark", "lowWatermark", "leaderId")
"""They are -1 beside an error."""
_TEXTS = {int(code): code.message for code in ErrorCode}
_TOPICLESS = frozenset((ApiKey.ALTER_CONFIGS, ApiKey.DELETE_GROUPS, ApiKey.DESCRIBE_CONFIGS))


def canRefuse(key: ApiKey) -> bool:
    """Whether there can be an error in the response to a kind of request."""
    return key in SPLIT or key in MARKED or hasattr(key.responseClass, "errorCode")


def namesTopics(key: ApiKey) -> bool:
    """Whether a kind of request names topics."""
    request = key.requestClass()  # arrays are attributes of instances
    return key is ApiKey.OFFSET_FETCH or any(hasattr(request, name) for name in _TOPIC_FIELDS)


def namesPartitions(key: ApiKey) -> bool:
    """Whether a kind of request or its response names partitions."""
    layout = SPLIT.get(key)
    if layout is not None:
        return len(layout.asked) > 1
    return namesTopics(key)


def places(body: Any, nameOf: NameOf) -> Iterator[tuple[str | None, int | None]]:
    """
    The topics and partitions that a request names; (L{None}, L{None}) alone where there are none,
    and (topic, L{None}) where a topic has no partitions in it.
    """
    groups = [each for each in getattr(body, "groups", ()) if hasattr(each, "topics")]
    isEmpty = True
    for each in (body, *groups):
        for field in _TOPIC_FIELDS:
            for topic in getattr(each, field, None) or ():
                isEmpty = False
                name = topicName(topic, nameOf)
                for part in _first(topic, _PARTITION_FIELDS) or (None,):
                    yield name, None if part is None else _index(part)
    if isEmpty:
        yield None, None


def topicName(element: Any, nameOf: NameOf) -> str | None:
    """The name of what an element of a request or response is about."""
    if isinstance(element, str):
        return element
    found = _first(element, _NAME_FIELDS)
    topicId = getattr(element, "topicId", ZERO_UUID)
    return found or (nameOf(bytes(topicId)) if topicId != ZERO_UUID else None)


def _first(element: Any, names: Sequence[str]) -> Any:
    for name in names:
        found = getattr(element, name, None)
        if found:
            return found
    return None


def _index(element: Any) -> int:
    if isinstance(element, int):
        return element
    for name in _INDEX_FIELDS:
        found = getattr(element, name, None)
        if type(found) is int:  # a named tuple has a method index
            return found
    raise TypeError(f"{element!r} is no partition")


def _copy(element: Any, **values: Any) -> Any:
    if isinstance(element, ApiMessage):
        return type(element)(**{**vars(element), **values})
    return element._replace(**values)


def refusal(made: Any, code: int, **values: Any) -> Any:
    """
    A response, or an element of one, with an error.

    @param made: its class.
    """
    names = ("partitionErrorCode",) if hasattr(made, "partitionErrorCode") else ("errorCode",)
    values.update(dict.fromkeys(names, code))
    values.update({name: -1 for name in _MISSING_FIELDS if hasattr(made, name)})
    if hasattr(made, "records"):  # librdkafka takes null for garbage
        values["records"], values["abortedTransactions"] = b"", None
    if hasattr(made, "errorMessage"):
        values["errorMessage"] = _TEXTS.get(code)
    return made(**values)


# -- requests that are split


def split(key: ApiKey, body: Any, codeOf: CodeOf, nameOf: NameOf) -> tuple[Any, Any]:
    """
    Take the refused parts out of a request.

    @return: the rest, L{None} if there is none; and a response with the refusals, L{None} if there
        are none.
    """
    layout = SPLIT[key]
    made, kept = key.responseClass(), []
    field = layout.asked[0]
    if key is ApiKey.DELETE_TOPICS and body.topicNames:
        field = "topicNames"
    answered = getattr(made, layout.answered[0])
    for topic in getattr(body, field):
        if len(layout.asked) == 1:
            code = codeOf(None if key in _TOPICLESS else topicName(topic, nameOf), None)
            if code:
                answered.append(_refusedElement(key, layout, topic, code))
            else:
                kept.append(topic)
            continue
        left, refused = _splitTopic(key, layout, topic, codeOf, topicName(topic, nameOf))
        if refused:
            cls = getattr(key.responseClass, layout.structs[0])
            answered.append(cls(**_identity(topic, cls), **{layout.answered[1]: refused}))
        if left:
            kept.append(_copy(topic, **{layout.asked[1]: left}))
    if not answered:
        return body, None
    return (_copy(body, **{field: kept}) if kept else None), made


def _splitTopic(
    key: ApiKey, layout: _Layout, topic: Any, codeOf: CodeOf, name: str | None
) -> tuple[list[Any], list[Any]]:
    left, refused = [], []
    cls = getattr(key.responseClass, layout.structs[1])
    [indexField] = [each for each in _INDEX_FIELDS if hasattr(cls, each)]
    for part in getattr(topic, layout.asked[1]):
        code = codeOf(name, _index(part))
        if code:
            refused.append(refusal(cls, code, **{indexField: _index(part)}))
        else:
            left.append(part)
    return left, refused


def _refusedElement(key: ApiKey, layout: _Layout, element: Any, code: int) -> Any:
    cls = getattr(key.responseClass, layout.structs[0])
    return refusal(cls, code, **_identity(element, cls))


def _identity(element: Any, cls: Any) -> dict[str, Any]:
    if isinstance(element, str):
        return {"groupId" if hasattr(cls, "groupId") else "name": element}
    return {
        name: getattr(element, name)
        for name in _KEPT_FIELDS
        if hasattr(cls, name) and hasattr(element, name) and name not in _INDEX_FIELDS
    }


def merge(key: ApiKey, refused: Any, answer: Any) -> Any:
    """Put the refusals of a request into the response to its rest."""
    layout = SPLIT[key]
    into = getattr(answer, layout.answered[0])
    for each in getattr(refused, layout.answered[0]):
        same = [
            other
            for other in into
            if len(layout.answered) > 1
            and (other.name, getattr(other, "topicId", None))
            == (each.name, getattr(each, "topicId", None))
        ]
        if same:
            getattr(same[0], layout.answered[1]).extend(getattr(each, layout.answered[1]))
        else:
            into.append(each)
    return answer


# -- responses that are marked


def mark(key: ApiKey, version: int, response: Any, codeOf: CodeOf, nameOf: NameOf) -> Any:
    """Put errors over what was found. Returns the response."""
    if (key is ApiKey.FIND_COORDINATOR and version < 4) or (
        key is ApiKey.OFFSET_FETCH and 2 <= version < 8
    ):
        code = codeOf(None, None)
        if code:
            return refusal(key.responseClass, code)
    _markWithin(response, None, codeOf, nameOf)
    return response


def _markWithin(message: Any, topic: str | None, codeOf: CodeOf, nameOf: NameOf) -> None:
    for value in vars(message).values():
        if not isinstance(value, list):
            continue
        for place, element in enumerate(value):
            if isinstance(element, ApiMessage):
                value[place] = _marked(element, topic, codeOf, nameOf)


def _marked(element: Any, topic: str | None, codeOf: CodeOf, nameOf: NameOf) -> Any:
    cls = type(element)
    isPartition = any(hasattr(cls, name) for name in _INDEX_FIELDS)
    if not isPartition and not hasattr(cls, "resourceName"):
        topic = topicName(element, nameOf) or topic
    if hasattr(cls, "errorCode"):
        code = codeOf(topic, _index(element) if isPartition else None)
        if code:
            kept = {name: getattr(element, name) for name in _KEPT_FIELDS if hasattr(cls, name)}
            return refusal(cls, code, **kept)
    _markWithin(element, topic, codeOf, nameOf)
    return element


# -- responses as they come from the handlers


def unpacked(header: RequestHeader, answer: Any) -> Any:
    """
    The body of a response as an object of C{messages}, whose frame may be packed already. Reads
    what is a slice of a file, and gives it back. Blocks.
    """
    if not isinstance(answer, list):
        answer = [encodeResponse(header, answer)]
    try:
        frame = b"".join(_bytesOf(part) for part in answer)
    finally:
        releaseSlices(answer)
    key, version = header.apiKey, header.apiVersion
    position = 8 + (version >= key.flexibleVersion)
    return key.responseClass.decode(frame, version, position)[0]


def _bytesOf(part: ResponsePart) -> bytes:
    if not isinstance(part, Slice):
        return bytes(part)
    if part.file is None:
        return b""
    return os.pread(part.file.fileno(), part.size, part.position)


def noSession() -> Any:
    """The response to an incremental fetch, which makes the client begin again with a full one."""
    return messages.FetchResponse(errorCode=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
