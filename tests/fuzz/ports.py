"""
The kinds of ports that a broker has, and what may come of mutations there.

C{plain} as 0.7 has it: everybody may do everything. C{allowed} plain, with rules for topics
(C{allow.file}): some topics are open, all else is refused. C{tls} the same rules, over TLS with a
client's certificate. C{handshake} the port of that, below TLS: nothing gets through, be it before a
handshake or, one time in sixteen, in the place of what should follow one. C{http} metrics and the
console: nothing can be changed. C{kafka} today's protocol.

At each, the directory is compared before and after: segments of topics that nobody may write to are
the same bytes, and there is no topic that may not be there.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import socket
import ssl
from contextlib import closing
from pathlib import Path
from typing import Any

from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.records.messageset import encodeMessage
from tests.fuzz import golden, kafkawatching
from tests.fuzz.asking import RECEIVE_SIZE, Caller, connect
from tests.fuzz.figures import Figures
from tests.fuzz.httpmutation import HttpMutator
from tests.fuzz.kafkamutation import TOPICS, KafkaMutator
from tests.fuzz.livebroker import LiveBroker
from tests.fuzz.mutation import Mutator
from tests.fuzz.sending import IAnswers
from tests.fuzz.tlsmutation import TlsMutator
from tests.fuzz.watching import (
    PROBE_COUNT,
    PROBE_SIZE,
    PROBE_TOPIC,
    PROBES,
    WATCHED_TOPIC,
    LogWatcher,
    PageWatcher,
    Watcher,
)
from tests.integration.certificates import Authority

_PROBE_CORRELATION = 0x5EED0000
SECRET_TOPIC = "secret"
SECRET = encodeMessage(b"nobody may see this: 3d41c8")
OPEN_TOPICS = ("t1", "roll", "gz", "m0", "sn*", "rec-*")
"""What the mutations' client may do everything with, as rules."""

PROPERTIES = {
    "num.partitions": "2",
    "max.partitions": "300",
    "max.socket.request.bytes": str(32 << 20),
    "max.request.memory.bytes": str(32 << 20),
    "max.decompressed.bytes": str(8 << 20),
    "max.decompression.memory.bytes": str(16 << 20),
    "max.unflushed.bytes": str(32 << 20),
    "log.flush.interval": "100",
    "log.default.flush.scheduler.interval.ms": "200",
    "log.file.size": "65536",
    "log.retention.size": "262144",
    "topic.log.retention.size": ",".join(
        f"{topic}:1000000000" for topic in (PROBE_TOPIC, WATCHED_TOPIC, SECRET_TOPIC)
    ),
    "topic.log.file.size": f"{WATCHED_TOPIC}:100000000",
    "log.cleanup.interval.mins": "1",
}


class FrameAnswers:
    """Answers in the dialect of 2011."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(2**31 - 1)
        self._known = {b"\x00\x00" + probe: index for index, probe in enumerate(PROBES)}
        self.count = 0
        self.reached = -1

    def feed(self, data: bytes) -> None:
        self._decoder.feed(data)
        while (frame := self._decoder.take()) is not None:
            self.count += 1
            if len(frame) < 2:
                raise AssertionError(f"an answer of {len(frame)} bytes")
            if SECRET in frame:
                raise AssertionError("an answer has what nobody may see")
            self.reached = max(self.reached, self._known.get(frame, -1))


class KafkaAnswers:
    """
    Answers in today's protocol.

    @ivar count: frames so far.
    @ivar reached: see L{IAnswers}.
    """

    def __init__(self, known: dict[bytes, int]) -> None:
        """@param known: the places of the probes' answers."""
        self._decoder = FrameDecoder(2**31 - 1)
        self._known = known
        self.count = 0
        self.reached = -1

    def feed(self, data: bytes) -> None:
        self._decoder.feed(data)
        while (frame := self._decoder.take()) is not None:
            self.count += 1
            if len(frame) < 4:
                raise AssertionError(f"an answer of {len(frame)} bytes")
            self.reached = max(self.reached, self._known.get(bytes(frame), -1))


class PageAnswers:
    """
    Answers of the page: the probes' alone are looked for, since a mutation may ask for answers
    without their bodies.
    """

    _FOUND = re.compile(rb"there is no broker 70000(\d\d),")
    _TAIL_SIZE = 64

    def __init__(self) -> None:
        self._tail = b""
        self.count = 0
        self.reached = -1

    def feed(self, data: bytes) -> None:
        data = self._tail + data
        end = 0
        for found in self._FOUND.finditer(data):
            self.count += 1
            self.reached = max(self.reached, int(found[1]))
            end = found.end()
        self._tail = data[max(end, len(data) - self._TAIL_SIZE) :]


class NoAnswers:
    """What TLS says of a handshake is not for us to read."""

    count = 0
    reached = -1

    def feed(self, data: bytes) -> None:
        if SECRET in data:
            raise AssertionError("an answer has what nobody may see")


class PlainPort:
    """
    A plain port. The others differ from it.

    @ivar number: its place in L{LiveBroker.ports}.
    """

    hasHalfClose = True
    laneCount = 16
    number = 0

    def __init__(self, folder: str) -> None:
        """@param folder: for what the broker must find beside its data."""
        self.folder = folder
        self.probes = [
            encodeFetch(PROBE_TOPIC, 0, index * PROBE_SIZE, PROBE_SIZE)
            for index in range(PROBE_COUNT)
        ]
        self.broker: Any = None

    def properties(self) -> dict[str, str]:
        """The broker's."""
        return dict(PROPERTIES)

    def mutator(self, seed: int) -> Any:
        """A source of mutations, with a method C{next}."""
        return Mutator(seed)

    def open(self) -> socket.socket:
        return connect(self.broker.ports[self.number])

    def newAnswers(self) -> IAnswers:
        return FrameAnswers()

    def watcher(self, figures: Figures) -> Watcher:
        """The client that must not notice anything."""
        return LogWatcher(self.broker, figures, self.caller())

    def caller(self) -> Caller:
        """A connection that may do everything."""
        return Caller(self.open())

    def prepare(self, broker: LiveBroker) -> None:
        """What the probes will fetch, and the topics of the recorded requests."""
        self.broker = broker
        self.fill({PROBE_TOPIC: b"".join(PROBES)})
        for _, request in golden.requests():
            with self.open() as connection:
                try:
                    connection.sendall(request)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(RECEIVE_SIZE):
                        pass
                except (ConnectionResetError, BrokenPipeError):
                    pass

    def fill(self, topics: dict[str, bytes]) -> None:
        """Produce message sets, and wait until they are visible."""
        caller = self.caller()
        for topic, data in topics.items():
            caller.ask(encodeProduce(topic, 0, data) + encodeOffsets(topic, 0, -1, 1))
            caller.untilVisible(topic, len(data))
        caller.close()

    def tidy(self) -> None:
        """Remove what the mutations have made, as its owner would: called now and then."""

    def endWaits(self) -> None:
        """End what may go on behind the last mutation."""

    def mayBeThere(self, topic: str) -> bool:
        """Whether there may be such a topic in the end."""
        return True

    def mayGrow(self, topic: str) -> bool:
        """Whether there may be more in it than before."""
        return topic != PROBE_TOPIC

    def requestFaults(self, figures: Figures) -> list[str]:
        """What the broker's counters say that must not be."""
        return []


class AllowedPort(PlainPort):
    """A plain port with rules, beside one with TLS, whose clients have rules of their own."""

    def properties(self) -> dict[str, str]:
        self._authority = Authority(f"{self.folder}/certificates")
        rules = Path(self.folder, "allow.txt")
        topics = " ".join(OPEN_TOPICS)
        rules.write_text(
            f"watcher both *\nmutator both {topics}\nmutator fetch {PROBE_TOPIC}\n"
            f"- both {topics}\n- fetch {PROBE_TOPIC}\n",
            encoding="ascii",
        )
        key, authorities = self._authority.issue("broker"), self._authority.ca
        secure = f"tls:0:privateKey={key}:clientCAs={authorities}:interface=127.0.0.1"
        return {
            **super().properties(),
            "listeners": f"tcp:0:interface=127.0.0.1|{secure}",
            "allow.file": str(rules),
        }

    def context(self, name: str) -> ssl.SSLContext:
        """A client's, with a certificate of that name."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self._authority.ca)
        context.load_cert_chain(self._authority.issue(name))
        return context

    def caller(self) -> Caller:
        return Caller(connect(self.broker.ports[1], self.context("watcher")))

    def prepare(self, broker: LiveBroker) -> None:
        self.broker = broker
        self.fill({PROBE_TOPIC: b"".join(PROBES), SECRET_TOPIC: SECRET})

    def mutator(self, seed: int) -> Any:
        """The recorded requests, and as many that would like to have what is not theirs."""
        recorded = [data for _, data in golden.requests()]
        message = encodeMessage(b"forged")
        forbidden = [
            encodeProduce(SECRET_TOPIC, 0, message),
            encodeProduce(WATCHED_TOPIC, 0, message),
            encodeProduce("never", -1, message),
            encodeProduce(PROBE_TOPIC, 0, message),
            encodeMultiProduce(
                [("t1", 0, message), (SECRET_TOPIC, 0, message), ("never", 1, message)]
            ),
            encodeFetch(SECRET_TOPIC, 0, 0, 1 << 16),
            encodeFetch(WATCHED_TOPIC, 0, 0, 1 << 16),
            encodeMultiFetch(
                [("t1", 0, 0, 1000), (SECRET_TOPIC, 0, 0, 1 << 16), (PROBE_TOPIC, 0, 0, 1000)]
            ),
            encodeOffsets(SECRET_TOPIC, 0, -1, 10),
            encodeOffsets("never", 0, -2, 10),
        ]
        return Mutator(
            seed, [*recorded, *itertools.islice(itertools.cycle(forbidden), len(recorded))]
        )

    def mayBeThere(self, topic: str) -> bool:
        return topic in (PROBE_TOPIC, SECRET_TOPIC, WATCHED_TOPIC) or self._isOpen(topic)

    def mayGrow(self, topic: str) -> bool:
        return topic == WATCHED_TOPIC or self._isOpen(
            topic
        )  # and what is in the watched one, its watcher reads back

    @staticmethod
    def _isOpen(topic: str) -> bool:
        return any(
            topic.startswith(rule[:-1]) if rule.endswith("*") else topic == rule
            for rule in OPEN_TOPICS
        )


class TlsPort(AllowedPort):
    """The one with TLS."""

    hasHalfClose = False
    laneCount = 64
    number = 1

    def prepare(self, broker: LiveBroker) -> None:
        super().prepare(broker)
        self._own = self.context("mutator")

    def open(self) -> socket.socket:
        plain = connect(self.broker.ports[1])
        plain.setblocking(False)
        return self._own.wrap_socket(plain, do_handshake_on_connect=False)


class HandshakePort(AllowedPort):
    """The same, below TLS."""

    laneCount = 32
    number = 1
    behindShare = 16
    """Of so many mutations, one comes behind a good handshake."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.probes = []
        self._openedCount = 0

    def prepare(self, broker: LiveBroker) -> None:
        super().prepare(broker)
        self._own = self.context("mutator")

    def mutator(self, seed: int) -> Any:
        return TlsMutator(seed)

    def open(self) -> socket.socket:
        self._openedCount += 1
        if self._openedCount % self.behindShare:
            return connect(self.broker.ports[1])
        secured = connect(self.broker.ports[1], self._own)
        return socket.socket(fileno=secured.detach())

    def newAnswers(self) -> IAnswers:
        return NoAnswers()

    def mayBeThere(self, topic: str) -> bool:
        return topic in (PROBE_TOPIC, SECRET_TOPIC, WATCHED_TOPIC)

    def mayGrow(self, topic: str) -> bool:
        return topic == WATCHED_TOPIC

    def requestFaults(self, figures: Figures) -> list[str]:
        """Nobody but the watcher, and what had been prepared, has produced."""
        expected = figures.watchCount + 2
        found = figures.broker.get("produceCount", expected)
        return [] if found == expected else [f"{found} requests to produce, and not {expected}"]


class HttpPort(PlainPort):
    """Metrics and the console."""

    hasHalfClose = False
    number = 1

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.probes = [
            b"GET /api/messages?topic=probe&partition=0&broker=70000%02d HTTP/1.1\r\n"
            b"Host: localhost\r\n\r\n" % index
            for index in range(PROBE_COUNT)
        ]

    def properties(self) -> dict[str, str]:
        return {**super().properties(), "num.partitions": "1", "http.listener": "0"}

    def mutator(self, seed: int) -> Any:
        return HttpMutator(seed)

    def newAnswers(self) -> IAnswers:
        return PageAnswers()

    def caller(self) -> Caller:
        return Caller(connect(self.broker.ports[0]))

    def watcher(self, figures: Figures) -> Watcher:
        return PageWatcher(self.broker, figures, self.broker.ports[1])

    def prepare(self, broker: LiveBroker) -> None:
        self.broker = broker
        self.fill({PROBE_TOPIC: b"".join(PROBES)})

    def mayBeThere(self, topic: str) -> bool:
        return topic == PROBE_TOPIC

    def mayGrow(self, topic: str) -> bool:
        return False

    def requestFaults(self, figures: Figures) -> list[str]:
        """The one request that produced what the probes' topic has."""
        found = figures.broker.get("produceCount", 1)
        return [] if found == 1 else [f"{found} requests to produce, and not 1"]


class KafkaPort(PlainPort):
    """
    A port for today's clients. One of eight probes is a Fetch, as are the watcher's; the others ask
    for the end of the log, which costs the broker a fourth.
    """

    hasHalfClose = False
    laneCount = 64
    fetchShare = 8

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._fetches = [
            kafkawatching.fetch(PROBE_TOPIC, index, 1, _PROBE_CORRELATION + index)
            for index in range(PROBE_COUNT)
        ]
        self.probes = [
            kafkawatching.logEnd(PROBE_TOPIC, _PROBE_CORRELATION + index)
            if index % self.fetchShare
            else self._fetches[index]
            for index in range(PROBE_COUNT)
        ]
        self._answers: dict[bytes, bytes] = {}

    def properties(self) -> dict[str, str]:
        return {**super().properties(), "listener.dialect": "kafka"}

    def mutator(self, seed: int) -> Any:
        return KafkaMutator(seed)

    def newAnswers(self) -> IAnswers:
        return KafkaAnswers({self._answers[probe]: at for at, probe in enumerate(self.probes)})

    def watcher(self, figures: Figures) -> Watcher:
        caller = kafkawatching.KafkaCaller(self.open())
        answers = {fetch: self._answers[fetch] for fetch in self._fetches}
        return kafkawatching.KafkaWatcher(self.broker, figures, caller, answers)

    def prepare(self, broker: LiveBroker) -> None:
        """The topics, what the probes will fetch, and their answers."""
        self.broker = broker
        caller = kafkawatching.KafkaCaller(self.open())
        for topic in (PROBE_TOPIC, WATCHED_TOPIC):
            caller.create(topic)
        for topic in TOPICS:
            caller.create(topic, 2)
        for index in range(PROBE_COUNT):
            caller.produce(PROBE_TOPIC, kafkawatching.batch(b"probe %06d" % index))
        asked = (*self._fetches, *self.probes)
        self._answers = {request: caller.receive(request) for request in asked}
        caller.close()

    def tidy(self) -> None:
        """
        Remove the members of all groups. The mutations make them, and do not come back: a new one
        waits for five minutes, and keeps its connection.
        """
        with closing(kafkawatching.KafkaCaller(self.open())) as caller:
            caller.emptyGroups()

    def endWaits(self) -> None:
        """
        The same, in rounds, since who is waiting joins thereupon: the broker reads no more from a
        connection with eight requests that wait.
        """
        with closing(kafkawatching.KafkaCaller(self.open())) as caller:
            while caller.emptyGroups():
                pass


PORTS = {
    "plain": PlainPort,
    "kafka": KafkaPort,
    "allowed": AllowedPort,
    "tls": TlsPort,
    "handshake": HandshakePort,
    "http": HttpPort,
}


def segments(directory: str) -> dict[tuple[str, str], str]:
    """A checksum for each segment file, by its topic and its path."""
    found = {}
    for path in Path(directory).glob("*-*/*"):
        if path.suffix not in (".kafka", ".log"):
            continue
        topic = path.parent.name.rpartition("-")[0]
        found[topic, str(path.relative_to(directory))] = hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
    return found


def changes(port: PlainPort, before: dict[tuple[str, str], str], directory: str) -> list[str]:
    """What has changed in a directory and may not have: a sentence each."""
    after = segments(directory)
    topics = sorted({path.name.rpartition("-")[0] for path in Path(directory).glob("*-*")})
    found = [
        f"there is a topic {topic!r}, which may not be"
        for topic in topics
        if not port.mayBeThere(topic)
    ]
    for key in sorted({*before, *after}):
        if not port.mayGrow(key[0]) and before.get(key) != after.get(key):
            found.append(f"{key[1]} is not what it was")
    return found
