"""
L{AclAuthorizer}: decides what a client may do, by the access control lists of the cluster's
metadata. It is Kafka's C{StandardAuthorizer}.

Super users may do everything. Everybody else may do what the lists allow
(L{pylogbroker.cluster.acls}); to a resource about which there is no list, nothing, or everything if
a setting says so.

Decisions are remembered until the lists change, so that a client that produces pays for its first
request. There are at most L{DECISION_COUNT_MAX} of them, of short names; beyond it all are
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.logger import Logger

from pylogbroker.broker.kafka.coordinators.grouprequests import javaHost
from pylogbroker.broker.kafka.protocol import ConnectionState
from pylogbroker.cluster.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    AclBinding,
    AclOperation,
    AclResourceType,
    AclTable,
)
from pylogbroker.net.ratelimitedlog import RateLimitedLogger

DECISION_COUNT_MAX = 20_000
LOGGED_COUNT_MAX = 200
"""Refusals that have a line of their own; later ones are logged at a limited rate."""
_NAME_LENGTH_MAX = 256


class AclAuthorizer:
    """
    Decides what clients may do; the module states the rules.

    @ivar refusedCount: requests, or parts of them, that were refused.
    """

    _log = Logger()

    def __init__(
        self,
        acls: Callable[[], Mapping[AclBinding, None]],
        superUsers: frozenset[str],
        allowsUnlisted: bool,
        clock: object,
    ) -> None:
        """
        @param acls: gives the current lists: another mapping after each change.
        @param superUsers: principals that may do everything.
        @param allowsUnlisted: whether a resource without a list is everybody's.
        """
        self.refusedCount = 0
        self._acls = acls
        self._superUsers = superUsers
        self._allowsUnlisted = allowsUnlisted
        self._limitedLog = RateLimitedLogger(clock, self._log)
        self._logged: set[tuple[str, int, int, str]] = set()
        self._seen: Mapping[AclBinding, None] = {}
        self._table = AclTable()
        self._decisions: dict[tuple[str, str, int, int, str | None], bool] = {}

    def _follow(self) -> None:
        """Take over changes of the lists."""
        acls = self._acls()
        if acls is self._seen:
            return
        before, self._seen = self._seen, acls
        for binding in before.keys() - acls.keys():
            self._table.remove(binding)
        for binding in acls.keys() - before.keys():
            self._table.add(binding)
        self._decisions.clear()

    def allows(
        self,
        client: ConnectionState,
        operation: AclOperation,
        resourceType: AclResourceType,
        name: str = CLUSTER_NAME,
    ) -> bool:
        """Whether a client may do something; if not, it is not counted as a refusal."""
        return self._decide(client, operation, resourceType, name)

    def allowsSome(
        self, client: ConnectionState, operation: AclOperation, resourceType: AclResourceType
    ) -> bool:
        """Whether a client may do something to at least one name of a type."""
        return self._decide(client, operation, resourceType, None)

    def requires(
        self,
        client: ConnectionState,
        operation: AclOperation,
        resourceType: AclResourceType,
        name: str = CLUSTER_NAME,
    ) -> bool:
        """As L{allows}, but a refusal is counted, and logged."""
        if self._decide(client, operation, resourceType, name):
            return True
        self.refused(client, operation, resourceType, name)
        return False

    def refused(
        self,
        client: ConnectionState,
        operation: AclOperation,
        resourceType: AclResourceType,
        name: str = CLUSTER_NAME,
    ) -> None:
        """Count and log a refusal."""
        self.refusedCount += 1
        key = client.principal[:_NAME_LENGTH_MAX], operation, resourceType, name[:_NAME_LENGTH_MAX]
        log: Logger | RateLimitedLogger = self._limitedLog
        if key not in self._logged and len(self._logged) < LOGGED_COUNT_MAX:
            self._logged.add(key)
            log = self._log
        log.warn(
            "Refused: {principal} from {host} may not {operation} {resourceType} {resource} (ACLs)",
            principal=repr(key[0]),
            host=client.clientHost,
            operation=operation.name,
            resourceType=resourceType.name,
            resource=repr(key[3]),
        )

    def _decide(
        self, client: ConnectionState, operation: int, resourceType: int, name: str | None
    ) -> bool:
        principal = client.principal
        if principal in self._superUsers:
            return True
        self._follow()
        host = javaHost(client.clientHost)[1:]
        key = principal, host, operation, resourceType, name
        found = self._decisions.get(key)
        if found is None:
            found = self._decided(*key)
            if len(self._decisions) >= DECISION_COUNT_MAX:
                self._decisions.clear()
            if name is None or len(name) <= _NAME_LENGTH_MAX:
                self._decisions[key] = found
        return found

    def _decided(
        self, principal: str, host: str, operation: int, resourceType: int, name: str | None
    ) -> bool:
        table = self._table
        # As by Kafka, a name that is not used stands for all about which there is no list.
        known = table.decide(principal, host, operation, resourceType, name or "hardcode")
        isAllowed = self._allowsUnlisted if known is None else known
        if name is None:
            return isAllowed or table.allowsSome(principal, host, operation, resourceType)
        return isAllowed

    def operations(
        self, client: ConnectionState, resourceType: AclResourceType, name: str = CLUSTER_NAME
    ) -> int:
        """What a client may do to a resource, each operation a bit."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resourceType]
            if self._decide(client, operation, resourceType, name)
        )
