"""
Client quotas for clients: set them and list them. A module of its own, since administrators alone
send these requests. Texts of errors are Kafka's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.metadataimage import MetadataImage, QuotaRecord, Record, quotaSize
from pylogbroker.cluster.quotas import (
    CLIENT_ID,
    IP,
    USER,
    QuotaEntity,
    checkQuota,
    entityOf,
    keysOf,
)
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader

QUOTA_SIZE_MAX = 4 << 20
"""Bytes of all quotas together, as they stand in a snapshot of the metadata."""

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
"""How a name is looked for: that one, the default, or any."""


class QuotaRequests:
    """The handlers that set and list client quotas."""

    def __init__(self, metadata: MetadataManager) -> None:
        self._metadata = metadata

    @property
    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self.describeClientQuotas,
            ApiKey.ALTER_CLIENT_QUOTAS: self.alterClientQuotas,
        }

    # -- DescribeClientQuotas

    def describeClientQuotas(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Any:
        """Handle DescribeClientQuotas; as L{Handler}."""
        cls = messages.DescribeClientQuotasResponse
        try:
            wanted = _components(request.components)
        except KafkaError as error:
            return cls(errorCode=error.code, errorMessage=error.text, entries=None)
        return cls(
            errorMessage="",
            entries=[
                cls.EntryData(
                    entity=[
                        cls.EntityData(entityType=kind, entityName=name) for kind, name in entity
                    ],
                    values=[cls.ValueData(key=key, value=value) for key, value in quotas.items()],
                )
                for entity, quotas in self._metadata.image.quotas.items()
                if _matches(entity, wanted, request.strict)
            ],
        )

    # -- AlterClientQuotas

    def alterClientQuotas(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle AlterClientQuotas; as L{Handler}. Entities are changed independently."""
        return Deferred.fromCoroutine(self._alter(request))

    async def _alter(self, request: Any) -> Any:
        cls = messages.AlterClientQuotasResponse
        wanted = [
            ({part.entityType: part.entityName for part in each.entity}, each.ops)
            for each in request.entries
        ]
        counts = Counter(entityOf(names) for names, _ in wanted)

        async def alter(names: Mapping[str, str | None], ops: list[Any]) -> Any:
            entity = entityOf(names)
            result = cls.EntryData(
                errorMessage=None,
                entity=[cls.EntityData(entityType=kind, entityName=name) for kind, name in entity],
            )
            try:
                if counts[entity] > 1:
                    shown = ", ".join(f"{kind}={_shown(name)}" for kind, name in entity)
                    raise _invalid(
                        f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})"
                    )
                await self._metadata.change(
                    lambda image: (_decide(image, entity, names, ops, request.validateOnly), None)
                )
            except PylogbrokerError as error:
                found = errorOf(error)
                result.errorCode, result.errorMessage = found.code, found.text
            return result

        once = {entityOf(names): (names, ops) for names, ops in wanted}

        async def alterOne(place: tuple[Mapping[str, str | None], list[Any]]) -> Any:
            return await alter(*place)

        return cls(entries=await gatherInBatches(alterOne, list(once.values())))


def _shown(name: str | None) -> str:
    return "null" if name is None else name


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def _decide(
    image: MetadataImage,
    entity: QuotaEntity,
    names: Mapping[str, str | None],
    ops: list[Any],
    validateOnly: bool,
) -> list[Record]:
    try:
        keys = keysOf(names)
        for op in ops:
            if not op.remove:
                checkQuota(keys, op.key, op.value)
    except ValueError as error:
        raise _invalid(str(error)) from error
    current = image.quotas.get(entity, {})
    wanted = {op.key: None if op.remove else op.value for op in ops}
    records = [
        QuotaRecord(dict(entity), key, value)
        for key, value in wanted.items()
        if current.get(key) != value
    ]
    size = sum(quotaSize(each) for each in records if each.key not in current)
    if image.quotaSize + size > QUOTA_SIZE_MAX:
        text = f"The quotas would take more than {QUOTA_SIZE_MAX} bytes."
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
    return [] if validateOnly else list(records)


def _components(components: list[Any]) -> dict[str, tuple[int, str | None]]:
    """
    What a name of each type must be.

    @raise KafkaError: nothing can be looked for so.
    """
    found: dict[str, tuple[int, str | None]] = {}
    for each in components:
        kind, match, name = each.entityType, each.matchType, each.match
        if kind in found:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise _invalid(f"Unknown match type {match}")
        if match == _EXACT and name is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match != _EXACT and name is not None:
            kindOfMatch = "DEFAULT" if match == _DEFAULT else "SPECIFIED"
            raise _invalid(
                f"Request specified MATCH_TYPE_{kindOfMatch}, but also specified a match string."
            )
        found[kind] = match, name
    if IP in found and len(found) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component."
        )
    return found


def _matches(
    entity: QuotaEntity, wanted: Mapping[str, tuple[int, str | None]], isStrict: bool
) -> bool:
    names = dict(entity)
    if isStrict and len(names) != len(wanted):
        return False
    for kind, (match, name) in wanted.items():
        if kind not in names:
            return False
        if match != _SPECIFIED and names[kind] != name:
            return False
    return True
