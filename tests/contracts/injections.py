"""
The clients' contract under faults: each scenario is run again and again, each time with one fault,
and must keep its promise all the same.

A first run without faults tells which requests a scenario sends, and how often. Then, for each
request, each error of L{RETRIABLE} and a lost connection, before and after the broker has carried
the request out, meet it once: at its first occurrence, and at a later one. An error may come
without the request having been carried out only, so one that says otherwise
(NOT_ENOUGH_REPLICAS_AFTER_APPEND) tells how the client retries, and nothing about duplicates; a
lost answer does.

L{sample} is the gate's part: in the scenarios of L{BASE}, each request and fault once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.testing.faults.faultinjector import Fault
from pylogbroker.testing.localbroker import LocalBroker
from tests.contracts.kafkaclients import SCENARIOS, ContractCluster, perform

RUN_SECONDS_MAX = 60

SESSION_TIMEOUT_MS = 6_000
"""
Of members: a coordinator waits so long for a member whose first JoinGroup was not answered. The
broker must allow it.
"""

_E, _K = ErrorCode, ApiKey
_COORDINATOR = (
    _E.COORDINATOR_LOAD_IN_PROGRESS,
    _E.COORDINATOR_NOT_AVAILABLE,
    _E.NOT_COORDINATOR,
)
_LEADER = (
    _E.NOT_LEADER_OR_FOLLOWER,
    _E.LEADER_NOT_AVAILABLE,
    _E.REPLICA_NOT_AVAILABLE,
    _E.KAFKA_STORAGE_ERROR,
)
_EPOCH = (_E.FENCED_LEADER_EPOCH, _E.UNKNOWN_LEADER_EPOCH)
_CONTROLLER = (_E.NOT_CONTROLLER, _E.REQUEST_TIMED_OUT)
_TRANSACTION = (*_COORDINATOR, _E.CONCURRENT_TRANSACTIONS)

RETRIABLE: Mapping[ApiKey, tuple[ErrorCode, ...]] = {
    _K.METADATA: (_E.LEADER_NOT_AVAILABLE, _E.LISTENER_NOT_FOUND),
    _K.PRODUCE: (
        *_LEADER,
        *_COORDINATOR,
        _E.UNKNOWN_TOPIC_OR_PARTITION,
        _E.UNKNOWN_TOPIC_ID,
        _E.INCONSISTENT_TOPIC_ID,
        _E.NOT_ENOUGH_REPLICAS,
        _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        _E.REQUEST_TIMED_OUT,
        _E.CORRUPT_MESSAGE,
        _E.CONCURRENT_TRANSACTIONS,
    ),
    _K.FETCH: (
        *_LEADER,
        *_EPOCH,
        _E.UNKNOWN_TOPIC_OR_PARTITION,
        _E.UNKNOWN_TOPIC_ID,
        _E.INCONSISTENT_TOPIC_ID,
        _E.OFFSET_NOT_AVAILABLE,
    ),
    _K.LIST_OFFSETS: (*_LEADER, *_EPOCH, _E.OFFSET_NOT_AVAILABLE),
    _K.OFFSET_FOR_LEADER_EPOCH: (*_LEADER, *_EPOCH),
    _K.FIND_COORDINATOR: (_E.COORDINATOR_LOAD_IN_PROGRESS, _E.COORDINATOR_NOT_AVAILABLE),
    _K.JOIN_GROUP: _COORDINATOR,
    _K.SYNC_GROUP: _COORDINATOR,
    _K.HEARTBEAT: _COORDINATOR,
    _K.LEAVE_GROUP: _COORDINATOR,
    _K.CONSUMER_GROUP_HEARTBEAT: _COORDINATOR,
    _K.OFFSET_COMMIT: (*_COORDINATOR, _E.REQUEST_TIMED_OUT),
    _K.OFFSET_FETCH: (*_COORDINATOR, _E.UNSTABLE_OFFSET_COMMIT),
    _K.TXN_OFFSET_COMMIT: (*_COORDINATOR, _E.REQUEST_TIMED_OUT),
    _K.INIT_PRODUCER_ID: _TRANSACTION,
    _K.ADD_PARTITIONS_TO_TXN: _TRANSACTION,
    _K.ADD_OFFSETS_TO_TXN: _TRANSACTION,
    _K.END_TXN: _TRANSACTION,
    _K.DESCRIBE_TRANSACTIONS: _COORDINATOR,
    _K.LIST_TRANSACTIONS: (_E.COORDINATOR_LOAD_IN_PROGRESS,),
    _K.DESCRIBE_PRODUCERS: (_E.NOT_LEADER_OR_FOLLOWER,),
    _K.DESCRIBE_GROUPS: _COORDINATOR,
    _K.CONSUMER_GROUP_DESCRIBE: _COORDINATOR,
    _K.DELETE_GROUPS: _COORDINATOR,
    _K.OFFSET_DELETE: _COORDINATOR,
    _K.LIST_GROUPS: (_E.COORDINATOR_LOAD_IN_PROGRESS, _E.COORDINATOR_NOT_AVAILABLE),
    _K.CREATE_TOPICS: (*_CONTROLLER, _E.THROTTLING_QUOTA_EXCEEDED),
    _K.DELETE_TOPICS: (*_CONTROLLER, _E.THROTTLING_QUOTA_EXCEEDED),
    _K.CREATE_PARTITIONS: (*_CONTROLLER, _E.THROTTLING_QUOTA_EXCEEDED),
    _K.DELETE_RECORDS: (_E.NOT_LEADER_OR_FOLLOWER, _E.REQUEST_TIMED_OUT),
    _K.ELECT_LEADERS: _CONTROLLER,
    _K.ALTER_PARTITION_REASSIGNMENTS: _CONTROLLER,
    _K.LIST_PARTITION_REASSIGNMENTS: _CONTROLLER,
    _K.ALTER_CONFIGS: _CONTROLLER,
    _K.INCREMENTAL_ALTER_CONFIGS: _CONTROLLER,
}
"""
The errors that pass, which brokers give to each request. Left out is UNKNOWN_TOPIC_OR_PARTITION
where a client must report it. Requests that are not named have errors that stay alone, as all of
SASL's, or Kafka gives one for a part of the answer that the clients report as it is.
"""

BASE = (
    *("keyed", "times", "rangeGroup", "coordinatedGroup", "transactions", "offsetsInside"),
    *(name for name in SCENARIOS if name.startswith("admin")),
)
"""The scenarios of L{sample}, in which the clients send every request that they have."""

_UNSURE = {"acks": (_K.PRODUCE,)}
"""With C{acks=0} a message that was refused is lost: nothing is promised."""

_CONNECTION = frozenset((_K.API_VERSIONS, _K.SASL_HANDSHAKE, _K.SASL_AUTHENTICATE))


class Injection(NamedTuple):
    """
    One run with one fault.

    @ivar error: L{None}: the connection is cut.
    @ivar isHandled: of a cut connection: whether the broker carries the request out before.
    @ivar occurrence: of the request; the first is 1.
    """

    scenario: str
    key: ApiKey
    error: ErrorCode | None
    isHandled: bool
    occurrence: int

    def __str__(self) -> str:
        what = "lost request" if self.error is None else self.error.name
        what = "lost answer" if self.isHandled else what
        return f"{self.scenario}: {what} at {self.key.apiName} {self.occurrence}"


class FaultRunner:
    """Runs scenarios on one broker."""

    def __init__(self, reactor: Any, broker: LocalBroker, cluster: ContractCluster) -> None:
        """
        @param broker: of the cluster; started.
        """
        self._reactor = reactor
        self._broker = broker
        self._cluster = cluster
        self._counts: Counter[ApiKey] = Counter()
        self._arrived: Callable[[ApiKey, int], None] = lambda _key, _count: None
        self._runCount = 0
        for protocol in broker.broker.service.kafka.protocols:
            protocol.wrapHandlers(self._around)

    def _around(self, key: ApiKey, handler: Any) -> Any:
        def handle(header: Any, body: Any, state: Any) -> Any:
            self._counts[key] += 1
            self._arrived(key, self._counts[key])
            return handler(header, body, state)

        return handle

    async def _run(self, scenario: str) -> None:
        self._counts.clear()
        self._runCount += 1
        prefix = f"{scenario}{self._runCount}-"
        running = Deferred.fromCoroutine(
            perform(self._reactor, self._cluster, scenario, prefix, SESSION_TIMEOUT_MS)
        )
        running.addTimeout(RUN_SECONDS_MAX, self._reactor)
        await running

    async def requests(self, scenario: str) -> Mapping[ApiKey, int]:
        """The requests of a run without faults, and how often they are sent."""
        await self._run(scenario)
        return {key: count for key, count in self._counts.items() if key not in _CONNECTION}

    async def inject(self, injection: Injection) -> bool:
        """
        Run a scenario with a fault.

        @return: whether a request has met the fault.
        @raise Exception: of the scenario: the contract was not kept.
        """
        met: list[Fault] = []

        def arrived(key: ApiKey, count: int) -> None:
            if key is injection.key and count == injection.occurrence:
                met.append(self._order(injection))

        self._arrived = arrived
        try:
            await self._run(injection.scenario)
        finally:
            self._arrived = lambda _key, _count: None
            self._broker.clearFaults()
        return any(fault.hitCount for fault in met)

    def _order(self, injection: Injection) -> Fault:
        if injection.error is None:
            return self._broker.injectDisconnect(injection.key, isHandled=injection.isHandled)
        return self._broker.injectError(injection.key, injection.error)


def injections(scenario: str, requests: Mapping[ApiKey, int]) -> Iterator[Injection]:
    """
    All runs of a scenario.

    @param requests: that it sends, and how often.
    """
    for key, count in requests.items():
        if key in _UNSURE.get(scenario, ()):
            continue
        faults: list[tuple[ErrorCode | None, bool]] = [(None, False), (None, True)]
        faults += [(error, False) for error in RETRIABLE.get(key, ())]
        for error, isHandled in faults:
            yield Injection(scenario, key, error, isHandled, 1)
            if count > 1:
                yield Injection(scenario, key, error, isHandled, count // 2 + 1)


def sample(requests: Mapping[str, Mapping[ApiKey, int]]) -> Iterator[Injection]:
    """
    Each request and fault once, in turn at the first occurrence and at a later one.

    @param requests: of each scenario, as of L{injections}.
    """
    known: set[tuple[Any, ...]] = set()
    for scenario, found in requests.items():
        for each in injections(scenario, found):
            fault = each.key, each.error, each.isHandled
            isLater = len(known) % 2 == 1 and found[each.key] > 1
            if fault not in known and isLater == (each.occurrence > 1):
                known.add(fault)
                yield each
