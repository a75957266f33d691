"""
Access control lists for clients: make, list and delete them. A module of its own, since
administrators alone send these requests.

Without an authorizer the lists would have no effect; so there are none, as in Kafka. A list that is
there already is made again without a change. Texts of errors are Kafka's.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    checkPrincipal,
)
from pylogbroker.cluster.metadataimage import (
    AclRecord,
    MetadataImage,
    Record,
    RemoveAclRecord,
    aclSize,
)
from pylogbroker.errors import InvalidRequestValueError, PylogbrokerError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader

ACL_SIZE_MAX = 16 << 20
"""Bytes of all lists together, as they stand in a snapshot of the metadata."""

COMPARISON_COUNT_MAX = 500_000
"""
Comparisons of filters with lists in one request to delete; a filter that names one list whole needs
none.
"""

_DISABLED = "No Authorizer is configured."


class AclRequests:
    """The handlers that make, list and delete access control lists."""

    def __init__(self, metadata: MetadataManager, isEnabled: bool) -> None:
        """@param isEnabled: whether there is an authorizer."""
        self._metadata = metadata
        self._isEnabled = isEnabled

    @property
    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_ACLS: self.describeAcls,
            ApiKey.CREATE_ACLS: self.createAcls,
            ApiKey.DELETE_ACLS: self.deleteAcls,
        }

    # -- DescribeAcls

    def describeAcls(self, header: RequestHeader, request: Any, state: ConnectionState) -> Any:
        """Handle DescribeAcls; as L{Handler}."""
        cls = messages.DescribeAclsResponse
        wanted = _filterOf(request)
        if not self._isEnabled:
            text = "No Authorizer is configured on the broker"
            return cls(errorCode=ErrorCode.SECURITY_DISABLED, errorMessage=text)
        found: dict[tuple[int, str, int], Any] = {}
        for each in filter(wanted.matches, self._metadata.image.acls):
            place = each.resourceType, each.resourceName, each.patternType
            resource = found.get(place)
            if resource is None:
                resource = found[place] = cls.DescribeAclsResource(
                    resourceType=each.resourceType,
                    resourceName=each.resourceName,
                    patternType=each.patternType,
                )
            resource.acls.append(
                cls.AclDescription(
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permissionType=each.permission,
                )
            )
        return cls(errorMessage="", resources=list(found.values()))

    # -- CreateAcls

    def createAcls(self, header: RequestHeader, request: Any, state: ConnectionState) -> Any:
        """Handle CreateAcls; as L{Handler}."""
        for each in request.creations:
            if AclResourceType.UNKNOWN in (
                each.resourceType,
                each.resourcePatternType,
                each.operation,
                each.permissionType,
            ):
                raise InvalidRequestValueError("an ACL to be made with an unknown value")
        return Deferred.fromCoroutine(self._createAcls(request.creations))

    async def _createAcls(self, creations: list[Any]) -> Any:
        cls = messages.CreateAclsResponse
        refusal: KafkaError | None = None
        results: list[KafkaError | None] = []
        if not self._isEnabled:
            refusal = KafkaError(ErrorCode.SECURITY_DISABLED, _DISABLED)
        elif any(_isForFilters(each) for each in creations):
            refusal = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            try:
                results = await self._metadata.change(lambda image: _decide(image, creations))
            except PylogbrokerError as error:
                refusal = errorOf(error)
        if refusal is not None:
            results = [refusal] * len(creations)
        return cls(results=[_created(each) for each in results])

    # -- DeleteAcls

    def deleteAcls(self, header: RequestHeader, request: Any, state: ConnectionState) -> Any:
        """Handle DeleteAcls; as L{Handler}."""
        filters = [_filterOf(each) for each in request.filters]
        return Deferred.fromCoroutine(self._deleteAcls(filters))

    async def _deleteAcls(self, filters: list[AclFilter]) -> Any:
        cls = messages.DeleteAclsResponse
        if not self._isEnabled:
            refusal = KafkaError(ErrorCode.SECURITY_DISABLED, _DISABLED)
        else:

            def decide(image: MetadataImage) -> tuple[list[Record], list[list[AclBinding]]]:
                wide = sum(each.binding is None for each in filters)
                if wide * len(image.acls) > COMPARISON_COUNT_MAX:
                    text = f"{wide} filters are too many for {len(image.acls)} ACLs."
                    raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
                matching = [_matching(image, each) for each in filters]
                gone = dict.fromkeys(binding for found in matching for binding in found)
                return [RemoveAclRecord(*binding) for binding in gone], matching

            try:
                matching = await self._metadata.change(decide)
            except PylogbrokerError as error:
                refusal = errorOf(error)
            else:
                shown: dict[AclBinding, Any] = {}
                for binding in (binding for found in matching for binding in found):
                    if binding not in shown:
                        shown[binding] = _deleted(binding)
                return cls(
                    filterResults=[
                        cls.DeleteAclsFilterResult(
                            errorMessage=None, matchingAcls=[shown[binding] for binding in found]
                        )
                        for found in matching
                    ]
                )
        refused = cls.DeleteAclsFilterResult(errorCode=refusal.code, errorMessage=refusal.text)
        return cls(filterResults=[refused for _ in filters])


def _matching(image: MetadataImage, wanted: AclFilter) -> list[AclBinding]:
    only = wanted.binding
    if only is not None:
        return [only] if only in image.acls else []
    return list(filter(wanted.matches, image.acls))


def _decide(
    image: MetadataImage, creations: list[Any]
) -> tuple[list[Record], list[KafkaError | None]]:
    records: dict[AclBinding, Record] = {}
    results: list[KafkaError | None] = []
    size = image.aclSize
    for each in creations:
        try:
            binding = _checked(each)
            if binding not in image.acls and binding not in records:
                size += aclSize(binding)
                if size > ACL_SIZE_MAX:
                    text = f"The ACLs would take more than {ACL_SIZE_MAX} bytes."
                    raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
                records[binding] = AclRecord(*binding)
        except KafkaError as error:
            results.append(error)
        else:
            results.append(None)
    return list(records.values()), results


def _isForFilters(creation: Any) -> bool:
    """Whether a list to be made has a value that only filters may have."""
    return (
        creation.resourceType == AclResourceType.ANY
        or creation.resourcePatternType in (PatternType.ANY, PatternType.MATCH)
        or creation.operation == AclOperation.ANY
        or creation.permissionType == AclPermission.ANY
    )


def _checked(creation: Any) -> AclBinding:
    """@raise KafkaError: there can be no such list."""
    name = creation.resourceName
    if creation.resourceType == AclResourceType.CLUSTER and name != CLUSTER_NAME:
        _refuse(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        _refuse("Invalid empty resource name")
    _known(AclResourceType, creation.resourceType, "resourceType")
    _known(PatternType, creation.resourcePatternType, "patternType")
    _known(AclOperation, creation.operation, "operation")
    _known(AclPermission, creation.permissionType, "permissionType")
    try:
        checkPrincipal(creation.principal)
    except ValueError as error:
        _refuse(str(error))
    return AclBinding(
        creation.resourceType,
        creation.resourcePatternType,
        name,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permissionType,
    )


def _refuse(text: str) -> None:
    raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _known(kind: type[IntEnum], value: int, name: str) -> None:
    if value not in kind._value2member_map_:
        _refuse(f"Invalid {name} UNKNOWN")


def _filterOf(request: Any) -> AclFilter:
    """@raise InvalidRequestValueError: a value is that of nothing, as in Kafka."""
    values = (
        (AclResourceType, request.resourceTypeFilter),
        (PatternType, request.patternTypeFilter),
        (AclOperation, request.operation),
        (AclPermission, request.permissionType),
    )
    if any(value == 0 or value not in kind._value2member_map_ for kind, value in values):
        raise InvalidRequestValueError("a filter of ACLs with an unknown value")
    return AclFilter(
        request.resourceTypeFilter,
        request.patternTypeFilter,
        request.resourceNameFilter,
        request.principalFilter,
        request.hostFilter,
        request.operation,
        request.permissionType,
    )


def _created(error: KafkaError | None) -> Any:
    cls = messages.CreateAclsResponse.AclCreationResult
    if error is None:
        return cls(errorMessage="")
    isUnknown = error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    return cls(errorCode=error.code, errorMessage=None if isUnknown else error.text)


def _deleted(binding: AclBinding) -> Any:
    return messages.DeleteAclsResponse.DeleteAclsMatchingAcl(
        errorMessage=None,
        resourceType=binding.resourceType,
        resourceName=binding.resourceName,
        patternType=binding.patternType,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permissionType=binding.permission,
    )
