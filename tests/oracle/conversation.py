"""
Runs scenarios: sends their steps to a broker over blocking sockets, and writes down the answers.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from pylogbroker.errors import WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import ApiMessage
from tests.oracle.normaliser import Normaliser
from tests.oracle.steps import Ask, Close, Raw, Receive, Scenario, Setting, Step, Token, Until

FRAME_SIZE_MAX = 64 << 20
_KEYS = {int(key): key for key in ApiKey}
_HOUR_MS = 3_600_000


class Line(NamedTuple):
    """
    One recorded answer.

    @ivar request: C{"Fetch v12"}.
    @ivar answer: see L{Conversation}; C{"closed"} and C{"silent"} are answers, too.
    """

    label: str
    request: str
    answer: Any


class _Asked(NamedTuple):
    key: int
    version: int
    correlationId: int


class _ClosedError(Exception):
    """The broker closed the connection."""


class _Connection:
    """A connection, and the requests on it that have not been answered."""

    def __init__(self, host: str, port: int, timeoutSeconds: float) -> None:
        self._socket = socket.create_connection((host, port), timeoutSeconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.asked: deque[_Asked] = deque()
        self._correlationId = 0

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except ConnectionError:
            pass  # the next read tells

    def ask(self, ask: Ask) -> None:
        self._correlationId += 1
        self.asked.append(_Asked(int(ask.key), ask.version, self._correlationId))
        self.send(encodeRequest(ask, self._correlationId))

    def receive(self) -> bytes:
        """
        @raise _ClosedError: the connection was closed.
        @raise TimeoutError: nothing came.
        """
        (size,) = struct.unpack(">i", self._read(4))
        if not 0 <= size <= FRAME_SIZE_MAX:
            raise _ClosedError(f"a frame of {size} bytes")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            try:
                more = self._socket.recv(size - len(got))
            except ConnectionError as error:
                raise _ClosedError from error
            if not more:
                raise _ClosedError
            got += more
        return bytes(got)

    def waitAtMost(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()


def encodeRequest(ask: Ask, correlationId: int) -> bytes:
    """A frame, its size included. A key or version that does not exist gets the old header."""
    body = ask.body if isinstance(ask.body, bytes) else ask.body.encode(ask.version)
    clientId = ask.clientId
    head = struct.pack(">hhi", int(ask.key), ask.version, correlationId)
    encoded = b"" if clientId is None else clientId.encode()
    head += struct.pack(">h", -1 if clientId is None else len(encoded)) + encoded
    key = _KEYS.get(int(ask.key))
    if key is not None and key.isServed(ask.version) and ask.version >= key.flexibleVersion:
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def decodeAnswer(frame: bytes, asked: _Asked) -> tuple[ApiMessage, int, list[str]]:
    """
    The body of an answer, its version, and what is odd about it.

    @raise WireError: it cannot be decoded.
    """
    odd = []
    key, version = _KEYS[asked.key], asked.version
    if struct.unpack_from(">i", frame)[0] != asked.correlationId:
        odd.append("correlation id")
    position = 4
    if key is ApiKey.API_VERSIONS:
        if not key.isServed(version) or frame[4:6] == b"\0\x23":
            version = 0
    elif version >= key.flexibleVersion:
        if frame[4:5] != b"\0":
            odd.append("tags in the header")
        position += 1
    if key is ApiKey.PRODUCE:
        body, position = messages.ProduceResponse.decode(frame, version, position)
    else:
        body, position = key.responseClass.decode(frame, version, position)
    if position != len(frame):
        odd.append(f"{len(frame) - position} bytes behind the body")
    return body, version, odd


class Conversation:
    """
    A broker and the connections to it. The lines of a scenario are L{Line}s whose answers are
    dictionaries of fields, C{"closed"}, C{"silent"}, or C{{"undecodable": ...}}.
    """

    def __init__(
        self, host: str, port: int, timeoutSeconds: float = 15, silenceSeconds: float = 1
    ) -> None:
        """
        @param timeoutSeconds: for an answer; then the step is C{"silent"}.
        @param silenceSeconds: for the answer to raw bytes, which often have none.
        """
        self._address = host, port
        self._timeoutSeconds = timeoutSeconds
        self._silenceSeconds = silenceSeconds
        self._connections: dict[str, _Connection] = {}

    def run(self, scenario: Scenario) -> Iterator[Line]:
        """
        Run a scenario.

        @return: its lines, as they come. An exception of the scenario itself, whose cause is
            usually an unexpected answer, becomes the last line.
        """
        baseMs = time.time_ns() // 1_000_000 // 1000 * 1000 - _HOUR_MS
        self._names = Normaliser(baseMs)
        self._names.nodeId = self._nodeId(scenario.login)
        steps = scenario.run(Setting(self._names.nodeId, baseMs))
        result: Any = None
        try:
            while True:
                try:
                    step = steps.send(result)
                except StopIteration:
                    return
                except Exception as error:
                    yield Line("the scenario", "", f"ended with {error!r}")
                    return
                result, line = self._do(step)
                if line is not None:
                    yield line
        finally:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _nodeId(self, login: bytes) -> int:
        if login:
            handshake = messages.SaslHandshakeRequest(mechanism="PLAIN")
            self._do(Ask("handshake", ApiKey.SASL_HANDSHAKE, 1, handshake, "node"))
            authenticate = messages.SaslAuthenticateRequest(authBytes=login)
            self._do(Ask("authenticate", ApiKey.SASL_AUTHENTICATE, 1, authenticate, "node"))
        ask = Ask("node", ApiKey.METADATA, 1, messages.MetadataRequest(topics=[]), "node")
        body, _ = self._do(ask)
        self._connections.pop("node").close()
        return int(body.brokers[0].nodeId)

    def _do(self, step: Step) -> tuple[Any, Line | None]:
        if isinstance(step, Close):
            if step.on in self._connections:
                self._connections.pop(step.on).close()
            return None, None
        if isinstance(step, Until):
            return self._repeat(step)
        connection = self._connect(step.on)
        if isinstance(step, Raw):
            connection.send(step.data)
            return self._rawAnswer(step, connection)
        if isinstance(step, Receive):
            return self._answer(step, connection)
        if isinstance(step, Token):
            return self._tokenAnswer(step, connection)
        connection.ask(step)
        if not step.isAnswered:
            return None, None
        return self._answer(step, connection)

    def _connect(self, name: str) -> _Connection:
        if name not in self._connections:
            self._connections[name] = _Connection(*self._address, self._timeoutSeconds)
        return self._connections[name]

    def _repeat(self, step: Until) -> tuple[Any, Line | None]:
        deadline = time.monotonic() + self._timeoutSeconds
        while True:
            body, line = self._do(step.ask)
            if (body is not None and step.done(body)) or time.monotonic() > deadline:
                return body, line
            time.sleep(0.02)

    def _rawAnswer(self, step: Raw, connection: _Connection) -> tuple[Any, Line]:
        asked = _Asked(int(step.key), step.version, 1)
        connection.asked.append(asked)
        connection.waitAtMost(self._silenceSeconds)
        body, answer = self._read(asked, step, connection)
        if step.on in self._connections:
            self._connections.pop(step.on).close()
        return body, Line(step.label, "bytes", answer)

    def _tokenAnswer(self, step: Token, connection: _Connection) -> tuple[Any, Line]:
        connection.send(struct.pack(">i", len(step.data)) + step.data)
        answer: Any
        try:
            body = connection.receive()
            answer = self._names.text("authBytes", body)
        except (_ClosedError, TimeoutError) as error:
            body, answer = None, "silent" if isinstance(error, TimeoutError) else "closed"
            self._connections.pop(step.on).close()
        return body, Line(step.label, "token", answer)

    def _answer(self, step: Ask | Receive, connection: _Connection) -> tuple[Any, Line | None]:
        if isinstance(step, Ask):
            asked = connection.asked[-1]
        else:
            asked = connection.asked[0]
        body, answer = self._read(asked, step, connection)
        if isinstance(step, Ask) and not step.isRecorded:
            return body, None
        key = _KEYS.get(asked.key)
        name = key.apiName if key is not None else f"key {asked.key}"
        return body, Line(step.label, f"{name} v{asked.version}", answer)

    def _read(
        self, asked: _Asked, step: Ask | Receive | Raw, connection: _Connection
    ) -> tuple[Any, Any]:
        """The body, and what is recorded; answers that nobody waits for are passed over."""
        try:
            while True:
                frame = connection.receive()
                first = connection.asked.popleft()
                if first is asked or frame[:4] == struct.pack(">i", asked.correlationId):
                    break
            while connection.asked and connection.asked[0].correlationId <= asked.correlationId:
                connection.asked.popleft()
            body, version, odd = decodeAnswer(frame, asked)
        except _ClosedError:
            self._connections.pop(step.on).close()
            return None, "closed"
        except TimeoutError:
            self._connections.pop(step.on).close()
            return None, "silent"
        except (WireError, KeyError) as error:
            self._connections.pop(step.on).close()
            return None, {"undecodable": str(error)}
        answer = self._names.normalise(body, version, step.own)
        if odd:
            answer["odd"] = odd
        return body, answer
