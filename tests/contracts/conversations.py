"""
Recorded conversations of the clients' contract with Apache Kafka: their files, and how two requests
are compared.

A file of C{tests/golden/kafka43/conversations} has a scenario. Its first line names the listeners'
ports, which answers repeat. Each further line is an exchange, in the order of the requests:

  - C{client}: the client's id; C{request}: name and version; C{body}: the request's body, hex.
  - C{answer}: the body of the answer, hex; without it there is none.
  - C{after}: how many exchanges had begun when the answer came. What it waited for is among them.
  - C{repeats}: the client has asked the same once more, and was told the same.

Not in the file, since they depend on time alone: heartbeats to which the coordinator had nothing to
say, and what repeats the line before. Of equal fetches without messages there is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import ApiMessage
from tests.goldenfiles import GOLDEN
from tests.oracle.normaliser import Normaliser

CONVERSATIONS = GOLDEN / "kafka43" / "conversations"
_HOUR_MS = 3_600_000
_KEYS = {key.apiName: key for key in ApiKey}

CONNECTION_KEYS = frozenset((ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE))
"""What a client says on each new connection."""

_FREE_FIELDS = {
    ApiKey.API_VERSIONS: ("clientSoftwareVersion",),
    ApiKey.METADATA: ("allowAutoTopicCreation",),
}

HEARTBEATS = frozenset((ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT))


class Exchange(NamedTuple):
    """
    A request and its answer; see the module.

    @ivar answer: L{None}: there is none.
    """

    client: str
    key: ApiKey
    version: int
    body: bytes
    answer: bytes | None
    after: int
    isRepeated: bool = False

    @property
    def name(self) -> str:
        """C{"Fetch v13"}."""
        return f"{self.key.apiName} v{self.version}"

    @property
    def request(self) -> ApiMessage:
        """The request, decoded."""
        return decodeBody(self.key, "Request", self.version, self.body)

    @property
    def response(self) -> ApiMessage:
        """The answer, decoded."""
        assert self.answer is not None
        version = self.version
        if self.key is ApiKey.API_VERSIONS and self.answer[:2] == b"\0\x23":
            version = 0
        return decodeBody(self.key, "Response", version, self.answer)


class Conversation(NamedTuple):
    """
    A scenario's exchanges.

    @ivar timeMs: when it was recorded, in milliseconds since the epoch.
    @ivar ports: of the listeners, by name.
    """

    timeMs: int
    ports: dict[str, int]
    exchanges: list[Exchange]


def decodeBody(key: ApiKey, kind: str, version: int, body: bytes) -> ApiMessage:
    """A request or response as an object of C{messages}."""
    decoded: ApiMessage = messages.MESSAGES[f"{key.apiName}{kind}"].decode(body, version, 0)[0]
    return decoded


class RequestText:
    """
    Requests as JSON values in which nothing depends on the time or on our release. Whether metadata
    may create topics is such: only the first of two requests that follow each other may.
    """

    def __init__(self, timeMs: int) -> None:
        """
        @param timeMs: when the requests were sent, in milliseconds since the epoch.
        """
        self._normaliser = Normaliser(timeMs - _HOUR_MS)

    def of(self, key: ApiKey, version: int, body: ApiMessage) -> dict[str, Any]:
        """A request, each field by its name."""
        found: dict[str, Any] = _plain(body, version, self._normaliser)
        for name in _FREE_FIELDS.get(key, ()):
            found.pop(name, None)
        return found


def _plain(value: Any, version: int, normaliser: Normaliser) -> Any:
    if isinstance(value, ApiMessage):
        return {
            name: normaliser.batches(bytes(found))
            if name == "records" and (found := getattr(value, name)) is not None
            else _plain(getattr(value, name), version, normaliser)
            for name, field in value._fields.items()
            if field.versions.has(version)
        }
    if isinstance(value, list):
        return [_plain(each, version, normaliser) for each in value]
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def isQuiet(exchange: Exchange) -> bool:
    """Whether it depends on time alone: a heartbeat without news, a fetch without messages."""
    if exchange.key not in (*HEARTBEATS, ApiKey.FETCH):
        return False
    asked: Any = exchange.request
    if exchange.answer is None:  # the client closed the connection
        return exchange.key is ApiKey.FETCH or isPlainHeartbeat(asked)
    answer: Any = exchange.response
    if answer.errorCode:
        return False
    if exchange.key is ApiKey.FETCH:
        parts = [part for topic in answer.responses for part in topic.partitions]
        return not any(part.errorCode or part.records for part in parts)
    if exchange.key is ApiKey.HEARTBEAT:
        return True
    return isPlainHeartbeat(asked) and (
        answer.assignment is None and answer.memberEpoch == asked.memberEpoch
    )


def isPlainHeartbeat(request: Any) -> bool:
    """Whether a heartbeat says nothing but that the member is there."""
    if not hasattr(request, "memberEpoch"):
        return True
    isMember: bool = request.memberEpoch > 0
    return isMember and request.topicPartitions is None and request.subscribedTopicNames is None


def condensed(exchanges: Sequence[Exchange], clients: re.Pattern[str]) -> list[Exchange]:
    """
    Leave out what depends on time alone.

    @param clients: the ids of those to keep: the broker speaks to itself, too.
    """
    kept: list[tuple[int, Exchange]] = []
    fetches: set[tuple[Any, ...]] = set()
    latest: dict[tuple[str, ApiKey], int] = {}  # the place in C{kept}
    text = RequestText(0)

    def same(first: Exchange, second: Exchange) -> bool:
        if first[:3] != second[:3]:
            return False
        requests = [text.of(each.key, each.version, each.request) for each in (first, second)]
        return requests[0] == requests[1] and first.answer == second.answer

    for number, exchange in enumerate(exchanges):
        if not clients.fullmatch(exchange.client):
            continue
        if isQuiet(exchange):
            place = (*exchange[:3], exchange.body)
            if exchange.key in HEARTBEATS or place in fetches:
                continue
            fetches.add(place)
        before = latest.get((exchange.client, exchange.key))
        if exchange.key is not ApiKey.FETCH and before is not None:
            known = kept[before][1]
            if same(known, exchange):
                kept[before] = kept[before][0], known._replace(isRepeated=True)
                continue
        latest[exchange.client, exchange.key] = len(kept)
        kept.append((number, exchange))
    numbers = [number for number, _exchange in kept]
    return [
        exchange._replace(after=sum(number < exchange.after for number in numbers))
        for _number, exchange in kept
    ]


def pathOf(scenario: str) -> Path:
    """The file of a scenario."""
    return CONVERSATIONS / f"{scenario}.jsonl"


def readConversation(scenario: str) -> Conversation:
    """
    @raise FileNotFoundError: the scenario was not recorded.
    """
    head, *lines = map(json.loads, pathOf(scenario).read_text(encoding="ascii").splitlines())
    return Conversation(head["timeMs"], head["ports"], [_read(line) for line in lines])


def _read(line: Any) -> Exchange:
    name, version = line["request"].split(" v")
    answer = line.get("answer")
    return Exchange(
        line["client"],
        _KEYS[name],
        int(version),
        bytes.fromhex(line["body"]),
        None if answer is None else bytes.fromhex(answer),
        line["after"],
        line.get("repeats", False),
    )


def writeConversation(scenario: str, conversation: Conversation) -> int:
    """Write a scenario's file. Returns its bytes."""
    lines: list[dict[str, Any]] = [{"timeMs": conversation.timeMs, "ports": conversation.ports}]
    for each in conversation.exchanges:
        line: dict[str, Any] = {
            "client": each.client,
            "request": each.name,
            "after": each.after,
            "body": each.body.hex(),
        }
        if each.answer is not None:
            line["answer"] = each.answer.hex()
        if each.isRepeated:
            line["repeats"] = True
        lines.append(line)
    CONVERSATIONS.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    pathOf(scenario).write_text(text, encoding="ascii")
    return len(text)
