"""
Answers as JSON in which the same broker behaviour has the same text: what a broker chooses itself
(ids, addresses, times) is replaced by a name.

Ids keep their identity: the topic id of C{orders} is C{<id of orders>} wherever it occurs, the
second member id that was ever given out is C{<member 2>}. Lists are sorted, since Apache's order is
that of its hash tables, except records and batches.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pylogbroker.errors import FormatError
from pylogbroker.protocol.kafka.schemas import ZERO_UUID, ApiMessage
from pylogbroker.records import recordbatch

_NODES = {"nodeId", "leaderId", "controllerId", "brokerId", "replicaNodes", "isrNodes"}
_TIMES = {"timestamp", "logAppendTimeMs", "lastTimestamp", "transactionStartTimeMs"}
_COUNTED = {
    "memberId": "member",
    "leader": "member",
    "producerId": "producer",
    "sessionId": "session",
}
_KEYED = {
    "apiKeys": "apiKey",
    "supportedFeatures": "name",
    "finalizedFeatures": "name",
    "configs": "name",
}
"""Long lists that are shown as objects, so that an item that is missing is one difference."""

_BYTES = {"totalBytes", "usableBytes"}
_TEXTS = {"errorMessage", "batchIndexErrorMessage"}
_TIME_DIGITS = re.compile(r"(?<!\d)-?\d{13,19}(?!\d)")
_UUID = re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])")
_MEMBER_ID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_SCRAM_NONCE = re.compile(r"r=(clientnonce)[^,]+,")
_SCRAM_SIGNATURE = re.compile(r"v=[A-Za-z0-9+/]+=*$")
_CLIENT_TIMES_MS = 30 * 60_000
_NOW_AFTER_MS = 50 * 60_000
_DAY_MS = 86_400_000


class Normaliser:
    """
    Names for the values of one run of a scenario.

    @ivar nodeId: of the broker.
    """

    def __init__(self, baseMs: int, nodeId: int = -1) -> None:
        """
        @param baseMs: an hour before now: see L{steps.Setting}.
        """
        self._baseMs = baseMs
        self.nodeId = nodeId
        self._topics: dict[bytes, str] = {}
        self._names: dict[tuple[str, object], str] = {}
        self._counts: dict[str, int] = {}

    def learn(self, body: ApiMessage) -> None:
        """
        Learn the names of topic ids and of producers; C{normalise} does it too, but an answer that
        is not recorded needs it.
        """
        name, topicId = getattr(body, "name", None), getattr(body, "topicId", None)
        isGood = not getattr(body, "errorCode", 0)
        if name and topicId and topicId != ZERO_UUID and isGood:
            self._topics[topicId] = name
        for field in body._fields:
            value = getattr(body, field)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, ApiMessage):
                    self.learn(item)
        if type(body).__name__ == "InitProducerIdResponse" and body.errorCode == 0:
            self._count("producer", body.producerId)
        if type(body).__name__ == "JoinGroupResponse" and body.memberId:
            self._count("member", body.memberId)
            for member in sorted(body.members, key=lambda member: member.metadata):
                self._count("member", member.memberId)
        if type(body).__name__ == "FetchResponse" and body.sessionId:
            self._count("session", body.sessionId)

    def _count(self, kind: str, value: object) -> None:
        if (kind, value) not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[kind, value] = f"<{kind} {self._counts[kind]}>"

    def normalise(self, body: ApiMessage, version: int, own: str | None = None) -> dict[str, Any]:
        """
        An answer as JSON.

        @param own: the prefix of the topics and groups to keep.
        """
        self.learn(body)
        return self._message(body, version, own)

    def _message(self, body: ApiMessage, version: int, own: str | None) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, field in body._fields.items():
            if not field.versions.has(version):
                continue
            value = getattr(body, name)
            if isinstance(value, list):
                made[name] = self._list(name, value, version, own)
            else:
                made[name] = self._value(name, value, version, own)
        if made.get("resourceType") == 4:
            made["resourceName"] = made["resourceName"].replace(str(self.nodeId), "<node>")
        return made

    def _list(self, name: str, items: list[Any], version: int, own: str | None) -> Any:
        if own is not None:
            items = [item for item in items if _isOwn(item, own)]
        made = [self._value(name, item, version, own) for item in items]
        made.sort(key=lambda item: json.dumps(item, sort_keys=True))
        key = _KEYED.get(name)
        keyed = {str(item[key]): item for item in made} if key is not None else {}
        return keyed if len(keyed) == len(made) > 0 else made

    def _value(self, name: str, value: Any, version: int, own: str | None) -> Any:
        if isinstance(value, ApiMessage):
            return self._message(value, version, own)
        if name == "records":
            return None if value is None else self.batches(bytes(value))
        if isinstance(value, bytes) and len(value) == 16 and name in ("topicId", "clusterId"):
            return self.topic(value)
        if isinstance(value, bytes | memoryview):
            return self.text(name, bytes(value))
        if name == "resourceName":
            return value
        return self._scalar(name, value)

    @staticmethod
    def text(name: str, value: bytes) -> str | None:
        """Bytes as text; in those of SCRAM, the broker's nonce and what follows from it by name."""
        if name == "authBytes" and value.startswith((b"r=", b"v=")):
            found = _SCRAM_NONCE.sub(r"r=\1<nonce>,", value.decode("ascii"))
            return _SCRAM_SIGNATURE.sub("v=<signature>", found)
        return _text(value)

    def _scalar(self, name: str, value: Any) -> Any:
        if name in _COUNTED and (_COUNTED[name], value) in self._names:
            return self._names[_COUNTED[name], value]
        if name in _NODES and value == self.nodeId:
            return "<node>"
        if name == "throttleTimeMs" and value:
            return "<throttle>"
        if name in _TIMES:
            return self.time(value)
        if name in _BYTES and value >= 0:
            return "<bytes>"
        if name == "finalizedFeaturesEpoch" and value >= 0:
            return "<epoch>"
        if name == "memberId" and value and _MEMBER_ID.search(value):
            return "<new member>"
        if name in ("host", "port", "clusterId", "logDir") and value not in (None, "", -1):
            return f"<{name}>"
        if name in _TEXTS and value:
            return self._message_text(value)
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def _message_text(self, text: str) -> str:
        for (_, value), name in self._names.items():
            if isinstance(value, str) and value:
                text = text.replace(value, name)
        return _UUID.sub(_uuidName, _TIME_DIGITS.sub("<time>", text))

    def topic(self, topicId: bytes) -> str:
        """The name for a topic id; one that no answer has named stays as it is."""
        if topicId == ZERO_UUID:
            return "0"
        known = self._topics.get(topicId)
        return f"<id of {known}>" if known else topicId.hex()

    def time(self, value: int) -> int | str:
        """A time that a request had, counted from the base, or C{<now>}, or the number itself."""
        if 0 <= value - self._baseMs < _CLIENT_TIMES_MS:
            return f"T+{value - self._baseMs}"
        if _NOW_AFTER_MS <= value - self._baseMs < _DAY_MS:
            return "<now>"
        return value

    def batches(self, data: bytes) -> list[Any]:
        """
        Record batches. A batch that is cut at the end is left out: a broker may send it, clients
        ignore it.
        """
        made: list[Any] = []
        position = 0
        while position + recordbatch.BATCH_OVERHEAD <= len(data):
            try:
                header = recordbatch.readHeader(data, position)
                if position + header.size > len(data):
                    break
                recordbatch.checkCrc(data, position, header)
                records = [
                    [
                        record.offset,
                        self.time(record.timestampMs),
                        _text(record.key),
                        _text(record.value),
                        [[name, _text(value)] for name, value in record.headers],
                    ]
                    for record in recordbatch.iterateRecords(data, position, header)
                ]
            except FormatError as error:
                made.append(f"corrupt at {position}: {type(error).__name__}")
                break
            batch: dict[str, Any] = {
                "offsets": [header.baseOffset, header.baseOffset + header.lastOffsetDelta],
                "leaderEpoch": header.leaderEpoch,
                "attributes": header.attributes,
                "maxTimestamp": self.time(header.maxTimestampMs),
                "records": records,
            }
            if header.producerId != -1:
                producer = self._scalar("producerId", header.producerId)
                batch["producer"] = [producer, header.producerEpoch, header.baseSequence]
            made.append(batch)
            position += header.size
        return made


def _isOwn(item: Any, own: str) -> bool:
    for field in ("name", "groupId", "topic", "transactionalId"):
        if isinstance(item, ApiMessage) and field in item._fields:
            return str(getattr(item, field)).startswith(own)
    return True


def _uuidName(match: re.Match[str]) -> str:
    text = match.group()
    isUuid = any(sign.isdigit() for sign in text) or any(sign.isupper() for sign in text[1:])
    return "<uuid>" if isUuid and text.upper() != text else text


def _text(value: bytes | None) -> str | None:
    """Bytes as text, long ones in short."""
    if value is None:
        return None
    if len(value) > 200:
        return f"{len(value)} bytes from {value[:8]!r}"
    return value.decode("ascii") if value.isascii() and value.isalnum() else value.hex(" ")
