"""What a client of today's protocol needs: requests encoded, responses decoded, errors by name."""

from __future__ import annotations

import struct
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import RemoteError, WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.protocol.kafka.requests import RequestHeader, decodeHeader, encodeRequest
from pylogbroker.protocol.kafka.responses import decodeResponse, frameResponse
from tests.protocol.kafka.randommessages import randomMessage

ALL = frozenset(ApiKey)


class RequestTests(SynchronousTestCase):
    """Requests."""

    def test_versions(self) -> None:
        """A broker decodes every request, of every version, with any client id."""
        random = Random(5)
        for key in ApiKey:
            for version in range(key.firstVersion, key.lastVersion + 1):
                body = randomMessage(random, key.requestClass, version)
                for clientId in (None, "", "mé"):
                    header = RequestHeader(key, version, 7, clientId)
                    frame = encodeRequest(header, body)
                    self.assertEqual(struct.unpack(">i", frame[:4])[0], len(frame) - 4)
                    found, position = decodeHeader(frame[4:], ALL)
                    self.assertEqual(found, header)
                    decoded, end = key.requestClass.decode(frame[4:], version, position)
                    self.assertEqual((decoded, end), (body, len(frame) - 4), (key, version))

    def test_longClientId(self) -> None:
        """A client id that does not fit is refused."""
        header = RequestHeader(ApiKey.METADATA, 0, 1, "x" * 40_000)
        with self.assertRaisesRegex(WireError, "header of Metadata v0"):
            encodeRequest(header, messages.MetadataRequest(topics=[]))


class ResponseTests(SynchronousTestCase):
    """Responses."""

    def test_versions(self) -> None:
        """Every response of every version is what the broker has packed."""
        random = Random(6)
        for key in ApiKey:
            for version in range(key.firstVersion, key.lastVersion + 1):
                header = RequestHeader(key, version, 7, "me")
                body = randomMessage(random, key.responseClass, version)
                if key is ApiKey.API_VERSIONS:
                    body.errorCode = 0
                frame = frameResponse(header, body.encode(version))
                self.assertEqual(decodeResponse(header, frame[4:]), body)

    def test_apiVersions(self) -> None:
        """A broker that does not know the version answers in the layout of version 0."""
        body = messages.ApiVersionsResponse(errorCode=ErrorCode.UNSUPPORTED_VERSION)
        frame = struct.pack(">i", 7) + body.encode(0)
        found = decodeResponse(RequestHeader(ApiKey.API_VERSIONS, 4, 7, None), frame)
        self.assertEqual(found.errorCode, 35)

    def test_foreign(self) -> None:
        """What answers another request, or none, is refused."""
        header = RequestHeader(ApiKey.HEARTBEAT, 0, 7, None)
        with self.assertRaisesRegex(WireError, "response 8 to request 7"):
            decodeResponse(header, struct.pack(">i", 8))
        with self.assertRaisesRegex(WireError, "a response of 3 bytes"):
            decodeResponse(header, b"abc")


class ErrorTests(SynchronousTestCase):
    """Errors by name."""

    def test_named(self) -> None:
        """An error has Kafka's name and text, or the broker's, and says whether it passes."""
        error = ResponseError(16, "group g")
        self.assertEqual((error.code, error.name, error.isRetriable), (16, "NOT_COORDINATOR", True))
        self.assertEqual(
            str(error), "group g: NOT_COORDINATOR: This is not the correct coordinator."
        )
        self.assertIsInstance(error, RemoteError)
        self.assertEqual(str(ResponseError(44, text="no")), "POLICY_VIOLATION: no")
        self.assertFalse(ResponseError(44).isRetriable)

    def test_unknown(self) -> None:
        """A code of a later Kafka is told by number."""
        self.assertEqual(str(ResponseError(9_999, "t-0")), "t-0: error 9999")

    def test_check(self) -> None:
        """Only an error is raised."""
        checkCode(0)
        self.assertRaises(ResponseError, checkCode, 3)
