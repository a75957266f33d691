"""
L{ClusterRegistration}: a broker's place in a cluster of today's protocol. A module of its own, so
that its rules stand beside those of 2011's registration (L{pylogbroker.broker.registration}).

What must be true: while ZooKeeper answers, a broker that serves has an ephemeral node of the
current session, and the metadata have a registration that was written with that node, in one
transaction. The number of that change is the I{broker epoch}. So a broker that sees the node
sees the registration at least as late, and the controller can tell a broker that has gone from one
that has not come yet (L{pylogbroker.replication.controller.fenceAbsent}).

With a new session, or when the node was removed, the broker registers anew, in a new epoch. Until
then the log is not current, and the broker serves nothing that it leads.

After a fast restart the node of the old session is there until that expires. The start waits
L{PATIENCE_FACTOR} session time-outs for it; a node that stays belongs to another broker with this
id, and is an error at the start. Later it is logged, and tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from pylogbroker.broker.metadata.zookeeperlog import ZookeeperLog
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.kafka.metadatalog import ROOT, LiveBroker, beginningOf, brokerPath
from pylogbroker.cluster.metadataimage import (
    Endpoint,
    MetadataImage,
    Record,
    RegisterBrokerRecord,
)
from pylogbroker.errors import (
    ClosingException,
    ConfigurationError,
    MetadataUnconfirmedError,
    MultiFailedException,
    PylogbrokerError,
    StorageError,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import EPHEMERAL, CheckOperation, CreateOperation
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.net.timer import wallMs
from pylogbroker.replication.controller import (
    NO_LOSSES,
    LogState,
    PartitionKey,
    registerBroker,
)
from pylogbroker.replication.elections import Loss
from pylogbroker.retry import RETRY_INTERVAL_MS
from pylogbroker.types import formatCount

PATIENCE_FACTOR = 3
"""Session time-outs to wait for an old session."""

REPORTED_COUNT_MAX = 20
"""Lost partitions that a line of the log names."""

START_TRY_COUNT = 5
"""How often the start may lose its connection or its session."""

log = Logger()


class _DoesNotFitError(PylogbrokerError):
    """What stands before the registration must be written before."""


class ClusterRegistration:
    """
    Keeps a broker registered; the module states the rules.

    @ivar epoch: of the latest registration; -1 before the first.
    """

    def __init__(
        self,
        clock: Any,
        metadataLog: ZookeeperLog,
        metadata: MetadataManager,
        brokerId: int,
        endpoints: Sequence[Endpoint],
        rack: str | None,
        logs: LogState,
        previousEpoch: int,
        keepEpoch: Callable[[int], Deferred[None]],
        losses: Callable[[MetadataImage], Mapping[PartitionKey, Loss]],
    ) -> None:
        """
        @param metadataLog: open.
        @param endpoints: of the listeners; at least one.
        @param logs: what this broker's logs have of what it once had.
        @param previousEpoch: the broker epoch that was written in the log directory; -1: none.
        @param keepEpoch: writes the broker epoch there.
        @param losses: gives what the directory has lost of the partitions of an image.
        """
        self.epoch = -1
        self._clock = clock
        self._log = metadataLog
        self._zookeeper = metadataLog.zookeeper
        self._metadata = metadata
        self._brokerId = brokerId
        self._endpoints = endpoints
        self._rack = rack
        self._logs = logs
        self._previousEpoch = previousEpoch
        self._keepEpoch = keepEpoch
        self._losses = losses
        self._path = brokerPath(brokerId)
        self._lost: Deferred[Any] = succeed(None)
        self._isStopped = False

    @asDeferred
    async def start(self) -> None:
        """
        @return: fires when the broker is registered. Fails with L{ConfigurationError} when another
            one has its id, and with L{ZookeeperError} when ZooKeeper does not answer.
        """
        for triesLeft in reversed(range(START_TRY_COUNT)):
            try:
                await self._register()
                break
            except (ZookeeperTimeoutException, ClosingException):
                raise
            except (ZookeeperError, MetadataUnconfirmedError):
                if not triesLeft:
                    raise
            await self._log.pause(RETRY_INTERVAL_MS)
        self._keep().addErrback(
            lambda failure: log.failure("Staying registered failed: this is a bug", failure)
        )

    def stop(self) -> None:
        """Register no more. Closing the client removes the node."""
        self._isStopped = True
        self._lost.cancel()

    @asDeferred
    async def _keep(self) -> None:
        while await self._isLost():
            log.warn(
                "{path} is gone, perhaps with its session: registering broker {brokerId} again",
                path=self._path,
                brokerId=self._brokerId,
            )
            while not self._isStopped:
                try:
                    await self._register()
                    break
                except ClosingException:
                    return
                except PylogbrokerError as error:
                    log.warn(
                        "Registering broker {brokerId} did not work: {error}. It is tried again",
                        brokerId=self._brokerId,
                        error=error,
                    )
                await self._log.pause(RETRY_INTERVAL_MS)

    async def _isLost(self) -> bool:
        """Waits for the end of the registration. @return: C{False} if C{stop} has ended it."""
        await self._lost
        self._log.registeredSession = 0
        return not self._isStopped

    async def _register(self) -> None:
        while not self._isStopped:
            session = self._zookeeper.session_id
            looking, lost = self._zookeeper.exists_and_watch(self._path)
            lost.addErrback(lambda _failure: None)  # it fails with the session, or with our stop
            stat = await looking
            if stat is None:
                lost.cancel()
                await self._write(session)
            elif stat.ephemeralOwner != self._zookeeper.session_id:
                await self._waitFor(lost)
            elif session == self._zookeeper.session_id:
                # The one of the latest registration, which may have been one of unknown outcome.
                await self._log.catchUp()
                await self._registered(session, lost)
                return
            else:
                lost.cancel()

    async def _registered(self, session: int, lost: Deferred[Any]) -> None:
        self._lost = lost
        self.epoch = self._previousEpoch = self._metadata.image.brokers[self._brokerId].epoch
        self._reportLosses()
        self._logs, self._losses = LogState.INTACT, _noLosses  # the process goes on
        try:
            await self._keepEpoch(self.epoch)
        except StorageError as error:
            log.error(
                "The broker epoch could not be written: {error}. The next start counts as one "
                "after an unclean stop",
                error=error,
            )
        if self._zookeeper.session_id == session:
            self._log.registeredSession = session
            self._metadata.tellListeners()  # what the change said counts from now on
        log.info(
            "Broker {brokerId} is in cluster {clusterId}, in broker epoch {epoch}",
            brokerId=self._brokerId,
            clusterId=self._metadata.image.clusterId,
            epoch=self.epoch,
        )

    def _reportLosses(self) -> None:
        image = self._metadata.image
        lost = [(image.topicsById[topicId].name, index) for topicId, index in self._losses(image)]
        if lost:
            log.error(
                "Logs of {count} are gone, damaged, or end before committed records, and were given"
                " up: {partitions}. Other replicas lead where one in sync is left",
                count=formatCount(len(lost), "partition"),
                partitions=" ".join(f"{name}-{index}" for name, index in lost[:REPORTED_COUNT_MAX]),
            )

    async def _waitFor(self, gone: Deferred[Any]) -> None:
        patienceMs = PATIENCE_FACTOR * self._zookeeper.session_timeout
        log.info(
            "{path} is taken: waiting {ms} ms for its session to end",
            path=self._path,
            ms=patienceMs,
        )
        try:
            await gone.addTimeout(patienceMs / 1000, self._clock, _late)
        except TimeoutError:
            data, _stat = await self._zookeeper.get(self._path)
            raise ConfigurationError(
                f"brokerid={self._brokerId}: another broker of the cluster has this id in "
                f"{self._path}, and stayed so for {patienceMs} ms; it is {data!r}. Give one of "
                "them another brokerid"
            ) from None

    async def _write(self, session: int) -> None:
        """Create the node with the registration, if it is not there."""
        node = LiveBroker(self._endpoints, self._rack, wallMs(self._clock))
        create = CreateOperation(self._path, node.encode(), None, EPHEMERAL)
        isWhole = self._beginning(self._metadata.image)[1]
        guard = create if isWhole else CheckOperation(ROOT, -1)

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            records, fits = self._beginning(image)
            if isWhole and not fits:
                raise _DoesNotFitError
            return records, None

        try:
            await self._metadata.change(decide, [guard])
        except (MultiFailedException, _DoesNotFitError):
            pass  # the next look tells

    def _beginning(self, image: MetadataImage) -> tuple[list[Record], bool]:
        """@return: the records to write next, and whether the registration is one of them."""
        record = RegisterBrokerRecord(
            self._brokerId,
            self._metadata.position + 1,
            [list(each) for each in self._endpoints],
            self._rack,
        )
        records = registerBroker(
            image, record, self._logs, self._previousEpoch, self._losses(image)
        )
        some = beginningOf(records)
        return (some, True) if record in some else (some[: records.index(record)], False)


def _noLosses(_image: MetadataImage) -> Mapping[PartitionKey, Loss]:
    return NO_LOSSES


def _late(_result: object, _seconds: float) -> None:
    raise TimeoutError
