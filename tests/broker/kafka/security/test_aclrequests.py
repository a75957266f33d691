"""Access control lists, made and deleted by clients. What Apache answers is compared elsewhere."""

from __future__ import annotations

from typing import Any

from pylogbroker.broker.kafka.security import aclrequests
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.broker.kafka.kafkacase import KafkaCase

CREATE, DESCRIBE, DELETE = ApiKey.CREATE_ACLS, ApiKey.DESCRIBE_ACLS, ApiKey.DELETE_ACLS


def creation(name: str, **fields: Any) -> Any:
    values = {
        "resourceType": 2,
        "resourceName": name,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permissionType": 3,
    }
    return messages.CreateAclsRequest.AclCreation(**{**values, **fields})


def wanted(cls: Any, name: str | None = None, **fields: Any) -> Any:
    values = {
        "resourceTypeFilter": 1,
        "resourceNameFilter": name,
        "patternTypeFilter": 1,
        "principalFilter": None,
        "hostFilter": None,
        "operation": 1,
        "permissionType": 1,
    }
    return cls(**{**values, **fields})


class AclRequestTests(KafkaCase):
    """CreateAcls, DescribeAcls and DeleteAcls."""

    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }

    def make(self, *creations: Any) -> list[int]:
        body = messages.CreateAclsRequest(creations=list(creations))
        return [each.errorCode for each in self.ask(CREATE, 3, body).results]

    def names(self) -> list[str]:
        found = self.ask(DESCRIBE, 3, wanted(messages.DescribeAclsRequest))
        return [each.resourceName for each in found.resources]

    def delete(self, *filters: Any) -> Any:
        return self.ask(DELETE, 3, messages.DeleteAclsRequest(filters=list(filters)))

    def test_survivesARestart(self) -> None:
        """What was answered is there after a power cut, and what was deleted is not."""
        self.assertEqual(self.make(creation("a"), creation("a"), creation("b")), [0, 0, 0])
        self.delete(wanted(messages.DeleteAclsRequest.DeleteAclsFilter, "b"))
        self.lead.fileSystem.cutPower()
        self.begin(fileSystem=self.lead.fileSystem, reactor=self.lead.reactor)
        self.assertEqual(self.names(), ["a"])

    def test_room(self) -> None:
        """All lists together have a size; beyond it, further ones are refused."""
        self.patch(aclrequests, "ACL_SIZE_MAX", 330)
        refused = ErrorCode.POLICY_VIOLATION
        self.assertEqual(
            self.make(creation("a"), creation("b"), creation("c" * 200), creation("a")),
            [0, 0, refused, 0],
        )
        self.delete(wanted(messages.DeleteAclsRequest.DeleteAclsFilter, "a"))
        self.assertEqual(self.make(creation("d"), creation("e")), [0, refused])

    def test_tooManyFilters(self) -> None:
        """Filters are compared with lists a limited number of times; exact ones are not."""
        self.patch(aclrequests, "COMPARISON_COUNT_MAX", 3)
        self.make(creation("a"), creation("b"))
        cls = messages.DeleteAclsRequest.DeleteAclsFilter
        found = self.delete(wanted(cls, "a"), wanted(cls, "b")).filterResults
        self.assertEqual([each.errorCode for each in found], [ErrorCode.POLICY_VIOLATION] * 2)
        exact = {
            "resourceTypeFilter": 2,
            "patternTypeFilter": 3,
            "principalFilter": "User:alice",
            "hostFilter": "*",
            "operation": 3,
            "permissionType": 3,
        }
        found = self.delete(
            *(wanted(cls, name, **exact) for name in ("a", "none", "b"))
        ).filterResults
        self.assertEqual([len(each.matchingAcls) for each in found], [1, 0, 1])
        self.assertEqual(self.names(), [])

    def test_diskFailure(self) -> None:
        """If the metadata cannot be written, each list is refused."""
        self.lead.service.kafka.metadata.close()
        self.assertEqual(self.make(creation("a")), [ErrorCode.UNKNOWN_SERVER_ERROR])
        found = self.delete(wanted(messages.DeleteAclsRequest.DeleteAclsFilter)).filterResults
        self.assertEqual([each.errorCode for each in found], [ErrorCode.UNKNOWN_SERVER_ERROR])
