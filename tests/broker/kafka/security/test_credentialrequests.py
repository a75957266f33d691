"""
Users' passwords. That answers are Apache Kafka's is shown by its recorded ones
(L{tests.integration.test_oracle}).
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.security.credentialrequests import SALT_SIZE_MAX, CredentialRequests
from pylogbroker.broker.kafka.security.mechanisms import SCRAM_MECHANISMS
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.broker.kafka.requestbench import RequestBench

CHANGE = messages.AlterUserScramCredentialsRequest


class CredentialTests(SynchronousTestCase):
    """L{CredentialRequests}."""

    def setUp(self) -> None:
        self.bench = RequestBench()
        self.metadata = self.bench.kafka.metadata
        self.bench.handlers = CredentialRequests(self.metadata).handlers

    def put(self, name: str, mechanism: int = 1, **fields: Any) -> Any:
        values: dict[str, Any] = {"iterations": 4096, "salt": b"salt", "saltedPassword": b"x" * 32}
        return CHANGE.ScramCredentialUpsertion(
            name=name, mechanism=mechanism, **{**values, **fields}
        )

    def drop(self, name: str, mechanism: int = 1) -> Any:
        return CHANGE.ScramCredentialDeletion(name=name, mechanism=mechanism)

    def change(self, *upsertions: Any, deletions: Any = ()) -> dict[str, int]:
        """The codes by user."""
        body = CHANGE(deletions=list(deletions), upsertions=list(upsertions))
        response = self.bench.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body)
        return {each.user: each.errorCode for each in response.results}

    def users(self, *names: str) -> list[tuple[str, int, list[tuple[int, int]]]]:
        cls = messages.DescribeUserScramCredentialsRequest
        body = cls(users=[cls.UserName(name=name) for name in names] or None)
        response = self.bench.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, body)
        return [
            (
                each.user,
                each.errorCode,
                [(info.mechanism, info.iterations) for info in each.credentialInfos],
            )
            for each in response.results
        ]

    def test_kept(self) -> None:
        """The broker keeps two keys; they survive a power cut, and can be removed."""
        self.assertEqual(self.change(self.put("alice"), self.put("bob", 2)), {"alice": 0, "bob": 0})
        expected = SCRAM_MECHANISMS[1].credential(b"x" * 32, b"salt", 4096)
        self.bench.files.cutPower()
        self.bench = RequestBench(self.bench.files)
        metadata = self.bench.kafka.metadata
        self.assertEqual(metadata.image.scramCredentials["alice"], {1: expected})
        self.bench.handlers = CredentialRequests(metadata).handlers
        self.assertEqual(self.change(deletions=[self.drop("alice")]), {"alice": 0})
        self.assertEqual(self.users(), [("bob", 0, [(2, 4096)])])
        unknown = ErrorCode.RESOURCE_NOT_FOUND
        self.assertEqual(
            self.users("alice", "bob"), [("alice", unknown, []), ("bob", 0, [(2, 4096)])]
        )
        twice = ErrorCode.DUPLICATE_RESOURCE
        self.assertEqual(self.users("bob", "bob"), [("bob", twice, [])])

    def test_refused(self) -> None:
        """What is wrong with one user is told of this one; the others are changed."""
        bad = ErrorCode.UNACCEPTABLE_CREDENTIAL
        found = self.change(
            self.put("good"),
            self.put(""),
            self.put("a" * 256),
            self.put("mechanism", 3),
            self.put("few", iterations=4095),
            self.put("many", iterations=16_385),
            self.put("salt", salt=b"x" * (SALT_SIZE_MAX + 1)),
            self.put("twice"),
            deletions=[self.drop("twice"), self.drop("unknown"), self.drop("number", 7)],
        )
        self.assertEqual(
            found,
            {
                "good": 0,
                "": bad,
                "a" * 256: bad,
                "mechanism": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                "few": bad,
                "many": bad,
                "salt": bad,
                "twice": ErrorCode.DUPLICATE_RESOURCE,
                "unknown": ErrorCode.RESOURCE_NOT_FOUND,
                "number": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            },
        )
        self.assertEqual(self.users(), [("good", 0, [(1, 4096)])])

    def test_failedDisk(self) -> None:
        """Where the metadata cannot be written, nobody is changed, and all are told."""
        self.metadata.close()
        found = self.change(self.put("alice"), self.put("bob"))
        self.assertEqual(len(found), 2)
        self.assertNotIn(0, found.values())
        self.assertEqual(self.metadata.image.scramCredentials, {})
