"""Scenarios are run as they say, against a broker of a few lines."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from threading import Thread

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.requests import RequestHeader, decodeRequest
from pylogbroker.protocol.kafka.responses import encodeResponse
from tests.oracle.conversation import Conversation, Line, encodeRequest
from tests.oracle.scenarios import scenarios
from tests.oracle.scenarios.pieces import batch, produce
from tests.oracle.steps import Ask, Close, Raw, Receive, Scenario, Setting, Steps, Token, Until

METADATA = messages.MetadataRequest(topics=[])


def heartbeat(label: str, generation: int = 0, version: int = 4, **fields: bool) -> Ask:
    """A request whose answer has its generation as error code."""
    body = messages.HeartbeatRequest(generationId=generation)
    return Ask(label, ApiKey.HEARTBEAT, version, body, **fields)  # type: ignore[arg-type]


class TinyBroker:
    """
    Answers Metadata, and Heartbeat with the generation as error code. To generation -1 it closes
    the connection, to -2 it says nothing.
    """

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as incoming:
            while size := incoming.read(4):
                frame = incoming.read(struct.unpack(">i", size)[0])
                header, body = decodeRequest(frame, list(ApiKey))
                if header.apiKey is ApiKey.METADATA:
                    cls = messages.MetadataResponse
                    answer = cls(brokers=[cls.MetadataResponseBroker(nodeId=3, host="h", port=1)])
                elif header.apiKey is not ApiKey.HEARTBEAT or body.generationId == -2:
                    continue
                elif body.generationId == -1:
                    return
                else:
                    answer = messages.HeartbeatResponse(errorCode=body.generationId)
                connection.sendall(encodeResponse(header, answer))

    def stop(self) -> None:
        """Accept no more connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)


class ConversationTests(SynchronousTestCase):
    """L{Conversation}."""

    def setUp(self) -> None:
        self.broker = TinyBroker()
        self.addCleanup(self.broker.stop)

    def run_(self, steps: Callable[[Setting], Steps]) -> list[Line]:
        """The lines of a scenario."""
        conversation = Conversation("127.0.0.1", self.broker.port, 0.2, 0.1)
        return list(conversation.run(Scenario("tiny", steps)))

    def test_answers(self) -> None:
        """An answer is recorded and sent to the scenario; the node is known beforehand."""
        got = []

        def steps(setting: Setting) -> Steps:
            got.append(setting.nodeId)
            body = yield heartbeat("first", 7)
            got.append(body.errorCode)
            yield heartbeat("not recorded", 8)._replace(isRecorded=False)

        expected = [Line("first", "Heartbeat v4", {"throttleTimeMs": 0, "errorCode": 7})]
        self.assertEqual(self.run_(steps), expected)
        self.assertEqual(got, [3, 7])

    def test_closedAndSilent(self) -> None:
        """Both are recorded, the scenario gets C{None}, and the next step has a new connection."""

        def steps(setting: Setting) -> Steps:
            for generation in (-1, -2, 0):
                body = yield heartbeat("beat", generation)
                self.assertEqual(body is None, generation < 0)

        answers = [line.answer for line in self.run_(steps)]
        self.assertEqual(answers[:2], ["closed", "silent"])
        self.assertEqual(answers[2]["errorCode"], 0)

    def test_laterAnswers(self) -> None:
        """Answers that were not waited for are received in order; those without any are passed."""

        def steps(setting: Setting) -> Steps:
            yield heartbeat("", 1)._replace(isAnswered=False)
            yield heartbeat("", 2)._replace(isAnswered=False)
            yield Receive("one", "main")
            yield Receive("two", "main")
            yield produce("zero", 3, "t", bytes(16), batch(0, b"v"), acks=0)
            yield heartbeat("three", 3)
            yield Close()
            yield heartbeat("four", 4)

        lines = self.run_(steps)
        self.assertEqual([line.label for line in lines], ["one", "two", "three", "four"])
        self.assertEqual([line.answer["errorCode"] for line in lines], [1, 2, 3, 4])

    def test_until(self) -> None:
        """A request is repeated until its answer is right, and given up after the time-out."""
        seen = []

        def done(body: object) -> bool:
            seen.append(body)
            return len(seen) == 3

        def steps(setting: Setting) -> Steps:
            yield Until(heartbeat("third time"), done)
            yield Until(heartbeat("never"), lambda body: False)

        lines = self.run_(steps)
        self.assertEqual([line.label for line in lines], ["third time", "never"])
        self.assertGreater(len(seen), 2)

    def test_rawBytes(self) -> None:
        """A frame as it is, the end of the connection, or silence."""

        def steps(setting: Setting) -> Steps:
            for generation in (5, -1, -2):
                data = encodeRequest(heartbeat("", generation, 0), 1)
                yield Raw("raw", data, ApiKey.HEARTBEAT, 0)

        answers = [line.answer for line in self.run_(steps)]
        self.assertEqual(answers, [{"errorCode": 5}, "closed", "silent"])

    def test_tokens(self) -> None:
        """Bytes with a size and no header, as clients of SASL send them; or the end."""

        def steps(setting: Setting) -> Steps:
            for generation in (5, -1):
                yield Token("token", encodeRequest(heartbeat("", generation, 0), 1)[4:])
                yield Close()

        answers = [line.answer for line in self.run_(steps)]
        self.assertEqual(answers, ["00 00 00 01 00 05", "closed"])

    def test_scenarioThatEnds(self) -> None:
        """An exception of the scenario is its last line."""

        def steps(setting: Setting) -> Steps:
            body = yield heartbeat("closed", -1)
            body.errorCode
            yield heartbeat("never")

        lines = self.run_(steps)
        self.assertEqual([line.label for line in lines], ["closed", "the scenario"])


class RequestTests(SynchronousTestCase):
    """L{encodeRequest}, and the list of scenarios."""

    def test_headers(self) -> None:
        """Each version has its header; a version that does not exist has the old one."""
        for version, body in ((3, METADATA), (12, METADATA), (99, b"")):
            frame = encodeRequest(Ask("", ApiKey.METADATA, version, body), 9)[4:]
            if version == 99:
                self.assertEqual(frame, struct.pack(">hhih", 3, 99, 9, 6) + b"oracle")
            else:
                header, decoded = decodeRequest(frame, [ApiKey.METADATA])
                self.assertEqual(header, RequestHeader(ApiKey.METADATA, version, 9, "oracle"))
                self.assertEqual(decoded.topics, [])

    def test_scenarios(self) -> None:
        """Scenarios have the names of their files."""
        known = scenarios()
        self.assertIn("fetch-versions", known)
        self.assertTrue(all(name == found.name for name, found in known.items()))
