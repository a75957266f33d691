"""
DescribeUserScramCredentials and AlterUserScramCredentials; a module of its own, since this is the
one way by which passwords come into the metadata while the broker runs.

The client salts and hashes a password. The broker keeps two keys that it makes of that, by which it
can check a client but not be one. Nothing of it is ever given out again, only which users there are
and how many iterations their clients do.

Each user in a request fares by itself. Their changes are one change of the metadata, so a failed
disk fails all of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.errors import errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler
from pylogbroker.broker.kafka.security.mechanisms import ITERATIONS_MAX, SCRAM_MECHANISMS
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.metadataimage import (
    MetadataImage,
    Record,
    RemoveScramCredentialRecord,
)
from pylogbroker.errors import PylogbrokerError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader

USER_LENGTH_MAX = 255
"""Characters of a user's name; Kafka has no limit but that of its records."""
SALT_SIZE_MAX = 1024

Refusal = tuple[ErrorCode, str]


class CredentialRequests:
    """The handlers of requests about users' passwords."""

    def __init__(self, metadata: MetadataManager) -> None:
        self._metadata = metadata

    @property
    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self.describe,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self.alter,
        }

    def describe(self, header: RequestHeader, request: Any, state: ConnectionState) -> Any:
        """Handle DescribeUserScramCredentials; as L{Handler}."""
        cls = messages.DescribeUserScramCredentialsResponse
        known = self._metadata.image.scramCredentials
        counts = Counter(each.name for each in request.users or ())
        results = []
        for user in counts or known:
            made = cls.DescribeUserScramCredentialsResult(user=user, errorMessage="")
            if counts[user] > 1:
                made.errorCode = ErrorCode.DUPLICATE_RESOURCE
                made.errorMessage = (
                    "Cannot describe SCRAM credentials for the same user twice in a single"
                    f" request: {user}"
                )
            elif user not in known:
                made.errorCode = ErrorCode.RESOURCE_NOT_FOUND
                made.errorMessage = (
                    f"Attempt to describe a user credential that does not exist: {user}"
                )
            else:
                made.credentialInfos = [
                    cls.CredentialInfo(mechanism=mechanism, iterations=found.iterations)
                    for mechanism, found in sorted(known[user].items())
                ]
            results.append(made)
        return cls(errorMessage="", results=results)

    def alter(self, header: RequestHeader, request: Any, state: ConnectionState) -> Any:
        """Handle AlterUserScramCredentials; as L{Handler}."""
        cls = messages.AlterUserScramCredentialsResponse
        changed = [each.name for each in (*request.deletions, *request.upsertions)]
        counts = Counter(changed)
        made = {}
        for each in request.upsertions:
            mechanism = SCRAM_MECHANISMS.get(each.mechanism)
            if counts[each.name] == 1 and mechanism is not None:
                found = mechanism.credential(
                    bytes(each.saltedPassword), bytes(each.salt), each.iterations
                )
                made[each.name] = found

        def decide(image: MetadataImage) -> tuple[list[Record], dict[str, Refusal | None]]:
            records: list[Record] = []
            outcomes: dict[str, Refusal | None] = {}
            for each in request.deletions:
                refusal = _refusal(each) or _unknown(image, each)
                outcomes[each.name] = refusal
                if counts[each.name] == 1 and refusal is None:
                    records.append(RemoveScramCredentialRecord(each.name, each.mechanism))
            for each in request.upsertions:
                refusal = _refusal(each) or _unacceptable(each)
                outcomes[each.name] = refusal
                if counts[each.name] == 1 and refusal is None:
                    records.append(made[each.name].record(each.name, each.mechanism))
            return records, outcomes

        def answer(outcomes: dict[str, Refusal | None]) -> Any:
            results = []
            for user in counts:
                refusal = outcomes[user]
                if counts[user] > 1:
                    text = "A user credential cannot be altered twice in the same request"
                    refusal = ErrorCode.DUPLICATE_RESOURCE, text
                code, said = refusal or (ErrorCode.NONE, None)
                results.append(
                    cls.AlterUserScramCredentialsResult(
                        user=user, errorCode=code, errorMessage=said
                    )
                )
            return cls(results=results)

        def failed(failure: Any) -> dict[str, Refusal | None]:
            failure.trap(PylogbrokerError)
            error = errorOf(failure.value)
            return dict.fromkeys(counts, (error.code, error.text))

        changing: Deferred[dict[str, Refusal | None]] = self._metadata.change(decide)
        return changing.addErrback(failed).addCallback(answer)


def _refusal(change: Any) -> Refusal | None:
    if not change.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if len(change.name) > USER_LENGTH_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username is too long"
    if change.mechanism not in SCRAM_MECHANISMS:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    return None


def _unknown(image: MetadataImage, deletion: Any) -> Refusal | None:
    if deletion.mechanism in image.scramCredentials.get(deletion.name, {}):
        return None
    text = "Attempt to delete a user credential that does not exist"
    return ErrorCode.RESOURCE_NOT_FOUND, text


def _unacceptable(upsertion: Any) -> Refusal | None:
    mechanism = SCRAM_MECHANISMS[upsertion.mechanism]
    text = ""
    if upsertion.iterations < mechanism.iterationsMin:
        text = "Too few iterations"
    elif upsertion.iterations > ITERATIONS_MAX:
        text = "Too many iterations"
    elif len(upsertion.salt) > SALT_SIZE_MAX:
        text = "The salt is too long"
    return (ErrorCode.UNACCEPTABLE_CREDENTIAL, text) if text else None
