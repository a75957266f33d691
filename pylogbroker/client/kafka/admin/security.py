"""
An admin client's requests for access control lists, users and quotas. A module of its own, since
each subject of the admin client has one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.client.kafka.admin.routing import AdminRouter, Found, checkResponse, refusal
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.cluster.acls import AclBinding, AclFilter
from pylogbroker.config.listenersettings import SCRAM_SHA_256, SCRAM_SHA_512
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode

ITERATIONS = 4096
"""How often a password is hashed, unless it is said otherwise: some milliseconds."""

_MECHANISMS = {SCRAM_SHA_256: (1, "sha256"), SCRAM_SHA_512: (2, "sha512")}
_EXACT, _DEFAULT, _ANY = 0, 1, 2

ALL_ACLS = AclFilter()

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of type (C{user}, C{client-id}, C{ip}) and name; L{None}: the default."""


class SecurityAdmin:
    """See the module. The Deferreds fire as L{AdminRouter.each} says."""

    _router: AdminRouter

    # -- access control lists

    @asDeferred
    async def describeAcls(self, wanted: AclFilter = ALL_ACLS) -> list[AclBinding]:
        """
        The bindings that match.

        @return: fails with L{ResponseError}; as L{ClusterClient.attempt}.
        """
        body = messages.DescribeAclsRequest(**_filter(wanted))

        async def ask(connection: NegotiatedConnection) -> Any:
            answer = await connection.request(ApiKey.DESCRIBE_ACLS, body)
            return checkResponse(answer, "describeAcls")

        answer = await self._router.anywhere(ask, "describeAcls")
        return [
            AclBinding(
                each.resourceType,
                each.patternType,
                each.resourceName,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permissionType,
            )
            for each in answer.resources
            for acl in each.acls
        ]

    def createAcls(self, bindings: Iterable[AclBinding]) -> Deferred[Found[AclBinding, None]]:
        """Add bindings; those that are there already stay."""
        cls = messages.CreateAclsRequest

        async def ask(
            connection: NegotiatedConnection, some: list[AclBinding]
        ) -> dict[AclBinding, PylogbrokerError | None]:
            body = cls(
                creations=[
                    cls.AclCreation(
                        resourceType=each.resourceType,
                        resourceName=each.resourceName,
                        resourcePatternType=each.patternType,
                        principal=each.principal,
                        host=each.host,
                        operation=each.operation,
                        permissionType=each.permission,
                    )
                    for each in some
                ]
            )
            answer = await connection.request(ApiKey.CREATE_ACLS, body)
            return {
                each: refusal(found.errorCode, each, found.errorMessage)
                for each, found in zip(some, answer.results, strict=True)
            }

        return self._router.atController(bindings, ask, "createAcls")

    def deleteAcls(
        self, filters: Iterable[AclFilter]
    ) -> Deferred[Found[AclFilter, list[AclBinding]]]:
        """
        Remove the bindings that match.

        @return: by filter: what was removed.
        """
        cls = messages.DeleteAclsRequest

        async def ask(
            connection: NegotiatedConnection, some: list[AclFilter]
        ) -> dict[AclFilter, Any]:
            body = cls(filters=[cls.DeleteAclsFilter(**_filter(each)) for each in some])
            answer = await connection.request(ApiKey.DELETE_ACLS, body)
            return {
                each: refusal(found.errorCode, each, found.errorMessage)
                or [
                    AclBinding(
                        acl.resourceType,
                        acl.patternType,
                        acl.resourceName,
                        acl.principal,
                        acl.host,
                        acl.operation,
                        acl.permissionType,
                    )
                    for acl in found.matchingAcls
                    if not acl.errorCode
                ]
                for each, found in zip(some, answer.filterResults, strict=True)
            }

        return self._router.atController(filters, ask, "deleteAcls")

    # -- users

    def describeUserScramCredentials(
        self, users: Iterable[str] | None = None
    ) -> Deferred[dict[str, dict[str, int]]]:
        """
        The users with passwords.

        @param users: L{None}: all.
        @return: by user: how often the password is hashed, by mechanism; without users that have
            none. Fails with L{ResponseError}; as L{ClusterClient.attempt}.
        """
        cls = messages.DescribeUserScramCredentialsRequest
        body = cls(users=None if users is None else [cls.UserName(name=name) for name in users])
        names = {number: name for name, (number, _hash) in _MECHANISMS.items()}

        async def ask(connection: NegotiatedConnection) -> dict[str, dict[str, int]]:
            answer = await connection.request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, body)
            checkResponse(answer, "describeUserScramCredentials")
            found = {}
            for each in answer.results:
                problem = refusal(each.errorCode, f"user {each.user}", each.errorMessage)
                if each.errorCode == ErrorCode.RESOURCE_NOT_FOUND:
                    continue
                if problem is not None:
                    raise problem
                found[each.user] = {
                    names.get(info.mechanism, str(info.mechanism)): info.iterations
                    for info in each.credentialInfos
                }
            return found

        return self._router.anywhere(ask, "describeUserScramCredentials")

    def alterUserScramCredentials(
        self,
        passwords: Mapping[tuple[str, str], str | None],
        salt: bytes,
        iterations: int = ITERATIONS,
    ) -> Deferred[Found[str, None]]:
        """
        Set and remove passwords, which leave this process only salted and hashed. Hashing keeps the
        reactor for some milliseconds each.

        @param passwords: by user and mechanism; L{None}: remove it.
        @param salt: random bytes, 16 at least.
        @raise ValueError: an unknown mechanism, or a salt that is too short.
        """
        if len(salt) < 16:
            raise ValueError(f"a salt of {len(salt)} bytes; 16 at least are random enough")
        for _user, mechanism in passwords:
            if mechanism not in _MECHANISMS:
                raise ValueError(f"mechanism {mechanism!r}; there are {', '.join(_MECHANISMS)}")
        cls = messages.AlterUserScramCredentialsRequest
        hashed = {
            each: hashlib.pbkdf2_hmac(_MECHANISMS[each[1]][1], word.encode(), salt, iterations)
            for each, word in passwords.items()
            if word is not None
        }

        async def ask(connection: NegotiatedConnection, users: list[str]) -> dict[str, Any]:
            body = cls(
                deletions=[
                    cls.ScramCredentialDeletion(name=user, mechanism=_MECHANISMS[mechanism][0])
                    for (user, mechanism), word in passwords.items()
                    if word is None and user in users
                ],
                upsertions=[
                    cls.ScramCredentialUpsertion(
                        name=user,
                        mechanism=_MECHANISMS[mechanism][0],
                        iterations=iterations,
                        salt=salt,
                        saltedPassword=salted,
                    )
                    for (user, mechanism), salted in hashed.items()
                    if user in users
                ],
            )
            answer = await connection.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body)
            return {
                each.user: refusal(each.errorCode, f"user {each.user}", each.errorMessage)
                for each in answer.results
            }

        users = [user for user, _mechanism in passwords]
        return self._router.atController(users, ask, "alterUserScramCredentials")

    # -- quotas

    def describeClientQuotas(
        self, filters: Mapping[str, str | None] | None = None, isStrict: bool = False
    ) -> Deferred[dict[Entity, dict[str, float]]]:
        """
        The quotas of users, client ids and addresses.

        @param filters: by type of entity: a name, L{None} for the default, or C{"*"} for all.
        @param isStrict: leave out entities that have other types, too.
        @return: values by key, by entity. Fails with L{ResponseError}; as
            L{ClusterClient.attempt}.
        """
        cls = messages.DescribeClientQuotasRequest
        body = cls(components=[], strict=isStrict)
        for kind, name in (filters or {}).items():
            match = _DEFAULT if name is None else _ANY if name == "*" else _EXACT
            body.components.append(
                cls.ComponentData(
                    entityType=kind, matchType=match, match=name if match == _EXACT else None
                )
            )

        async def ask(connection: NegotiatedConnection) -> dict[Entity, dict[str, float]]:
            answer = await connection.request(ApiKey.DESCRIBE_CLIENT_QUOTAS, body)
            checkResponse(answer, "describeClientQuotas")
            return {
                tuple(sorted((each.entityType, each.entityName) for each in found.entity)): {
                    value.key: value.value for value in found.values
                }
                for found in answer.entries or ()
            }

        return self._router.anywhere(ask, "describeClientQuotas")

    def alterClientQuotas(
        self, quotas: Mapping[Entity, Mapping[str, float | None]], isDryRun: bool = False
    ) -> Deferred[Found[Entity, None]]:
        """
        Set and remove quotas.

        @param quotas: values by key, by entity; L{None}: remove it.
        """
        wanted = {tuple(sorted(entity)): values for entity, values in quotas.items()}
        cls = messages.AlterClientQuotasRequest

        async def ask(
            connection: NegotiatedConnection, some: list[Entity]
        ) -> dict[Entity, PylogbrokerError | None]:
            body = cls(
                entries=[
                    cls.EntryData(
                        entity=[
                            cls.EntityData(entityType=kind, entityName=name) for kind, name in each
                        ],
                        ops=[
                            cls.OpData(key=key, value=value or 0.0, remove=value is None)
                            for key, value in wanted[each].items()
                        ],
                    )
                    for each in some
                ],
                validateOnly=isDryRun,
            )
            answer = await connection.request(ApiKey.ALTER_CLIENT_QUOTAS, body)
            found = {}
            for each in answer.entries:
                entity = tuple(sorted((part.entityType, part.entityName) for part in each.entity))
                found[entity] = refusal(each.errorCode, entity, each.errorMessage)
            return found

        return self._router.atController(wanted, ask, "alterClientQuotas")


def _filter(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resourceTypeFilter": wanted.resourceType,
        "resourceNameFilter": wanted.resourceName,
        "patternTypeFilter": wanted.patternType,
        "principalFilter": wanted.principal,
        "hostFilter": wanted.host,
        "operation": wanted.operation,
        "permissionType": wanted.permission,
    }
