"""
A cluster of today's Kafka: brokers, who leads a partition, who coordinates a group; a module of its
own, since every command and client begins with it.

Metadata is asked when it is needed, and again when a broker says that it is not (or no more) the
one to ask, or cannot be reached. Errors that pass are tried again until the time-out; a request
that was perhaps carried out is not, unless the caller says that it may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

from pylogbroker.errors import (
    BrokerConnectionError,
    TimedOutError,
    UnknownPartitionError,
    UnsupportedVersionError,
)
from pylogbroker.net.endpointstrings import SocketAddress
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.protocol.kafka.saslclient import SaslLogin
from pylogbroker.retry import Backoff
from pylogbroker.syncclient.connection import TIMEOUT_MS, monotonic, sleep
from pylogbroker.syncclient.kafka.connection import CLIENT_ID, KafkaConnection
from pylogbroker.types import MAX_TIMESTAMP, TopicPartition

T = TypeVar("T")

BATCH_COUNT = 1_000
"""Topics or groups in one request."""

EARLIEST, LATEST = -2, -1
"""Times for L{KafkaCluster.offsets}."""

_MAX_TIMESTAMP_VERSION = 7
"""The first version of ListOffsets that knows L{MAX_TIMESTAMP}."""

_GROUP = 0


class KafkaCluster:
    """
    Connections to the brokers of a cluster. A context manager, which closes them.
    """

    def __init__(
        self,
        bootstrap: Sequence[SocketAddress],
        clientId: str = CLIENT_ID,
        timeoutMs: float = TIMEOUT_MS,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
        random: Callable[[], float] = lambda: 0.5,
        login: SaslLogin | None = None,
        connectTimeoutMs: float | None = None,
    ) -> None:
        """
        @param bootstrap: brokers to begin with, one at least; one with TLS makes all be asked so.
        @param timeoutMs: for each response, and for all attempts together.
        @param connectTimeoutMs: for connecting to a broker; L{None}: C{timeoutMs}.
        @param random: for jitter, numbers from 0 up to, not including, 1.
        @param login: for listeners with SASL.
        """
        self._login = login
        self._bootstrap = list(bootstrap)
        self._clientId = clientId
        self._timeoutMs = timeoutMs
        self._connectTimeoutMs = timeoutMs if connectTimeoutMs is None else connectTimeoutMs
        self._clock = clock
        self._pause = pause
        self._random = random
        self._connections: dict[tuple[str, int], KafkaConnection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[str, int] = {}
        self._controller = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections at once."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    # -- connections

    def _connect(self, host: str, port: int) -> KafkaConnection:
        found = self._connections.get((host, port))
        if found is None:
            found = self._connections[host, port] = KafkaConnection(
                host,
                port,
                self._bootstrap[0].tls,
                self._clientId,
                self._timeoutMs,
                self._login,
                connectTimeoutMs=self._connectTimeoutMs,
                clock=self._clock,
                pause=self._pause,
            )
        return found

    def broker(self, number: int) -> KafkaConnection:
        """
        @raise BrokerConnectionError: the cluster has no such broker.
        """
        if number not in self._brokers:
            self.metadata(())
        if number not in self._brokers:
            raise BrokerConnectionError(f"the cluster has no broker {number}")
        return self._connect(*self._brokers[number])

    def any(self) -> KafkaConnection:
        """
        A connection to any broker that can be reached.

        @raise BrokerConnectionError: none can be reached; the reason for the last.
        """
        addresses = [*self._brokers.values(), *((each.host, each.port) for each in self._bootstrap)]
        problem: BrokerConnectionError | None = None
        for address in dict.fromkeys(addresses):
            connection = self._connect(*address)
            try:
                connection.supports(ApiKey.API_VERSIONS)
            except BrokerConnectionError as error:
                problem = error
            else:
                return connection
        assert problem is not None
        raise problem

    def attempt(self, act: Callable[[], T]) -> T:
        """
        Do something until it succeeds, fails for good, or the time is over.

        @param act: may be repeated; forgets what it knew of the cluster by raising
            L{ResponseError} or L{BrokerConnectionError}.
        @raise PylogbrokerError: the last failure.
        """
        backoff = Backoff(self._random)
        deadlineMs = self._clock() * 1000 + self._timeoutMs
        while True:
            try:
                return act()
            except (ResponseError, BrokerConnectionError) as error:
                isPassing = not isinstance(error, TimedOutError) and getattr(
                    error, "isRetriable", True
                )
                waitMs = backoff.failed()
                if not isPassing or self._clock() * 1000 + waitMs > deadlineMs:
                    raise
            self.forget()
            self._pause(waitMs / 1000)

    def forget(self) -> None:
        """Ask anew who leads and coordinates: what is known has proved to be wrong."""
        self._leaders.clear()
        self._coordinators.clear()
        self._controller = -1

    # -- metadata

    def metadata(self, topics: Sequence[str] | None, isCreating: bool = False) -> Any:
        """
        Ask for brokers and topics.

        @param topics: L{None}: all; none: only the brokers.
        @param isCreating: whether missing topics are created, if the broker does so.
        @return: a C{MetadataResponse}, whose topics have error codes of their own.
        """
        cls = messages.MetadataRequest
        wanted = (
            None if topics is None else [cls.MetadataRequestTopic(name=each) for each in topics]
        )
        found = self.any().request(
            ApiKey.METADATA, cls(topics=wanted, allowAutoTopicCreation=isCreating)
        )
        checkCode(found.errorCode)
        self._brokers = {each.nodeId: (each.host, each.port) for each in found.brokers}
        self._controller = found.controllerId
        for topic in found.topics:
            for part in topic.partitions:
                where = TopicPartition(topic.name, part.partitionIndex)
                if part.errorCode or part.leaderId < 0:
                    self._leaders.pop(where, None)
                else:
                    self._leaders[where] = part.leaderId
        return found

    def partitions(self, topic: str, isCreating: bool = False) -> list[int]:
        """
        The numbers of a topic's partitions, ascending.

        @raise ResponseError: there is no such topic, or it may not be seen.
        """

        def ask() -> list[int]:
            [found] = self.metadata([topic], isCreating).topics
            checkCode(found.errorCode, f"topic {topic}")
            return sorted(part.partitionIndex for part in found.partitions)

        if isCreating:
            return self.attempt(ask)
        return ask()

    def leader(self, where: TopicPartition) -> int:
        """
        The number of the broker that leads a partition.

        @raise ResponseError: there is none, or no such partition.
        """
        if where not in self._leaders:
            [found] = self.metadata([where.topic]).topics
            checkCode(found.errorCode, f"topic {where.topic}")
            for part in found.partitions:
                if part.partitionIndex == where.partition and where not in self._leaders:
                    raise ResponseError(
                        part.errorCode or ErrorCode.LEADER_NOT_AVAILABLE, str(where)
                    )
        if where not in self._leaders:
            raise UnknownPartitionError(f"there is no partition {where}")
        return self._leaders[where]

    def coordinator(self, group: str) -> KafkaConnection:
        """
        The broker that coordinates a consumer group.

        @raise ResponseError: there is none now.
        """
        number = self._coordinators.get(group)
        if number is None:
            body = messages.FindCoordinatorRequest(
                key=group, keyType=_GROUP, coordinatorKeys=[group]
            )
            connection = self.any()
            isMany = connection.supports(ApiKey.FIND_COORDINATOR, 4)
            if isMany:
                body.key = ""
            else:
                body.coordinatorKeys = []
            found = connection.request(ApiKey.FIND_COORDINATOR, body)
            if isMany:
                [found] = found.coordinators
            checkCode(found.errorCode, f"coordinator of group {group}", found.errorMessage)
            number = self._coordinators[group] = found.nodeId
            self._brokers[number] = (found.host, found.port)
        return self.broker(number)

    def controller(self) -> KafkaConnection:
        """The broker that changes topics."""
        if self._controller not in self._brokers:
            self.metadata(())
        return self.broker(self._controller)

    # -- requests

    def ask(self, key: ApiKey, body: Any, **more: Any) -> Any:
        """A request to any broker, which may be repeated. More as L{KafkaConnection.request}."""
        return self.attempt(lambda: self.any().request(key, body, **more))

    def change(self, key: ApiKey, body: Any) -> Any:
        """A request to the controller, which is sent once."""
        return self.controller().request(key, body, float(getattr(body, "timeoutMs", 0)))

    def askCoordinator(
        self, group: str, key: ApiKey, body: Any, codeOf: Callable[[Any], int], **more: Any
    ) -> Any:
        """
        A request to the coordinator of a group, which may be repeated.

        @param codeOf: the error code of a response.
        @raise ResponseError: the error, if it does not pass.
        """

        def ask() -> Any:
            found = self.coordinator(group).request(key, body, **more)
            checkCode(codeOf(found), f"group {group}")
            return found

        return self.attempt(ask)

    def offsets(
        self,
        places: Iterable[TopicPartition],
        time: int,
        isCommitted: bool = False,
        isRetried: bool = True,
    ) -> dict[TopicPartition, tuple[int, int] | ResponseError]:
        """
        Offsets by time.

        @param time: L{EARLIEST}, L{LATEST}, L{MAX_TIMESTAMP}, or milliseconds: the first record
            with that timestamp or a later one.
        @param isCommitted: the end is where the first open transaction begins.
        @param isRetried: whether errors that pass are tried again until the time-out.
        @return: offset and timestamp, both -1 where there is no such record; or why not.
        @raise UnsupportedVersionError: a broker does not know L{MAX_TIMESTAMP}.
        """
        cls = messages.ListOffsetsRequest
        wanted = list(places)

        def ask() -> dict[TopicPartition, tuple[int, int] | ResponseError]:
            found: dict[TopicPartition, tuple[int, int] | ResponseError] = {}
            byLeader: dict[int, dict[str, list[int]]] = {}
            for where in wanted:
                topics = byLeader.setdefault(self.leader(where), {})
                topics.setdefault(where.topic, []).append(where.partition)
            for number, topics in byLeader.items():
                body = cls(
                    replicaId=-1,
                    isolationLevel=int(isCommitted),
                    topics=[
                        cls.ListOffsetsTopic(
                            name=name,
                            partitions=[
                                cls.ListOffsetsPartition(partitionIndex=index, timestamp=time)
                                for index in indexes
                            ],
                        )
                        for name, indexes in topics.items()
                    ],
                )
                leader = self.broker(number)
                if time == MAX_TIMESTAMP and not leader.supports(
                    ApiKey.LIST_OFFSETS, _MAX_TIMESTAMP_VERSION
                ):
                    raise UnsupportedVersionError(
                        f"{leader.name} does not know which record has the highest timestamp"
                    )
                for topic in leader.request(ApiKey.LIST_OFFSETS, body).topics:
                    for part in topic.partitions:
                        where = TopicPartition(topic.name, part.partitionIndex)
                        if part.errorCode:
                            error = ResponseError(part.errorCode, str(where))
                            if error.isRetriable:
                                raise error
                            found[where] = error
                        else:
                            found[where] = (part.offset, part.timestamp)
            return found

        return self.attempt(ask) if isRetried else ask()

    def offsetsAt(
        self, places: Iterable[TopicPartition], time: int, isCommitted: bool = False
    ) -> dict[TopicPartition, int]:
        """
        Where reading from a time on begins. The parameters are those of C{offsets}.

        @return: by partition, as C{offsets}; the end where there is no such record.
        @raise ResponseError: a partition cannot be asked.
        """
        wanted, made = list(places), {}
        for where, found in self.offsets(wanted, time, isCommitted).items():
            if isinstance(found, ResponseError):
                raise found
            made[where] = found[0]
        missing = [where for where in wanted if made[where] < 0]
        return {**made, **self.offsetsAt(missing, LATEST, isCommitted)} if missing else made
