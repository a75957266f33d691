"""
A mirror as a Twisted service, and its settings. A module of its own, since an application can run
this service without C{twistd}.

It starts without its clusters, and retries until they are there. It stops in this order: it takes
no more messages; the target confirms those in flight, for at most C{close.timeout.ms}; it commits
offsets and leaves the groups; it closes the producers. Unconfirmed messages are not committed and
are sent again later.

The settings are the property files of the sources and the target, and the options of the command
(spec-0.7 tools §7). Some keys can have only one value in a mirror. It sets them, and warns if a
file asks for another value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, DeferredList, TimeoutError  # noqa: A004
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.cluster.subscription import WildcardSubscription, normalisePattern
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.config.kafka.clientsettings import KafkaProducerSettings
from pylogbroker.config.kafka.mirrorsettings import KafkaSourceSettings
from pylogbroker.config.producersettings import DEFAULT_ENCODER, SYNC, ProducerSettings
from pylogbroker.errors import ConfigurationError, InvalidPatternError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.metrics.exposition import Family
from pylogbroker.metrics.mirrormetrics import MirrorCounters, mirrorFamilies
from pylogbroker.mirror.kafkasource import KafkaSourceCluster
from pylogbroker.mirror.kafkatarget import KafkaTargetCluster
from pylogbroker.mirror.sourcecluster import SourceCluster
from pylogbroker.mirror.target import MirrorTarget, TargetCluster
from pylogbroker.net.deferreds import gatherSettled

REPORT_SECONDS = 60
STREAM_COUNT_MAX = 1_000
PRODUCER_COUNT_MAX = 1_000

_CONSUMERS = {
    "autocommit.enable": (
        "false",
        "offsets are committed, as far as the target has confirmed what is before them",
    ),
    "shallowiterator.enable": (
        "true",
        "compressed sets are opened, and compressed again as compression.codec of the target says",
    ),
}
_PRODUCERS = {
    "confirm": (
        "false",
        "offsets of the sources are committed only for what the target has confirmed",
    ),
    "queue.enqueueTimeout.ms": ("0", "the sources wait while the queue is full"),
}
_TODAYS_TIMES = {
    "delivery.timeout.ms": "a mirror gives up no message",
    "retries": "a mirror gives up no message",
}
_TODAYS_CONSUMERS = {
    "enable.auto.commit": (
        "false",
        "offsets are committed, as far as the target has confirmed what is before them",
    ),
    "consumer.timeout.ms": ("-1", "a mirror waits for messages"),
}
"""What a file may say to no effect, and why."""

BOOTSTRAP_SERVERS = "bootstrap.servers"
"""The key that makes a property file one of today's protocol."""


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """
    The settings of a mirror.

    @ivar consumers: of each source, in the protocol that it speaks.
    @ivar producer: of the target, in the protocol that it speaks.
    @ivar topics: the mirrored topics.
    @ivar streamCount: streams of each source.
    @ivar producerCount: connections to each target broker.
    @ivar isKeeping: whether a source partition always goes to the same target partition, in order;
        a target of today's Kafka is always mirrored so.
    """

    consumers: tuple[ConsumerSettings | KafkaSourceSettings, ...]
    producer: ProducerSettings | KafkaProducerSettings
    topics: WildcardSubscription
    streamCount: int = 1
    producerCount: int = 1
    isKeeping: bool = False

    @classmethod
    def fromProperties(
        cls,
        consumers: Sequence[Mapping[str, str]],
        producer: Mapping[str, str],
        topics: WildcardSubscription,
        warn: Callable[[str], None],
        *,
        streamCount: int = 1,
        producerCount: int = 1,
        isKeeping: bool = False,
    ) -> MirrorSettings:
        """
        Check property files.

        @param warn: called with a sentence for each key without effect.
        @raise ConfigurationError: a key is missing or wrong, or two contradict each other.
        """
        if not consumers:
            raise ConfigurationError("a mirror needs a source at least")
        if not 1 <= streamCount <= STREAM_COUNT_MAX:
            raise ConfigurationError(f"{streamCount} streams: 1 to {STREAM_COUNT_MAX} are possible")
        if not 1 <= producerCount <= PRODUCER_COUNT_MAX:
            raise ConfigurationError(
                f"{producerCount} producers: 1 to {PRODUCER_COUNT_MAX} are possible"
            )
        sources = tuple(_source(properties, warn) for properties in consumers)
        if len({(_addressOf(each), each.groupId) for each in sources}) < len(sources):
            raise ConfigurationError(
                "a source is given twice, with the same address and group; for more streams of one "
                "there is --num-streams"
            )
        if BOOTSTRAP_SERVERS in producer:
            today = _targetOfToday(producer, warn)
            _checkDifferent(sources, today)
            return cls(sources, today, topics, streamCount, producerCount, isKeeping=True)
        _warnOf(producer, _PRODUCERS, warn)
        target = ProducerSettings.fromProperties(producer, warn)
        if target.zkConnect and any(_addressOf(each) == target.zkConnect for each in sources):
            raise ConfigurationError(
                f"zk.connect={target.zkConnect} is a source and the target: it would mirror what "
                "it has mirrored, for ever"
            )
        groups = [each.groupId for each in sources if isinstance(each, KafkaSourceSettings)]
        if len(set(groups)) < len(groups):
            raise ConfigurationError(
                "two sources have the same group.id: a target of 2011 keeps what it knows of a "
                "source under that name"
            )
        if (isKeeping or groups) and not target.zkConnect:
            raise ConfigurationError(
                "with broker.list the brokers pick partitions: to keep partitions, the target must "
                "be given by zk.connect"
            )
        if target.callbackHandler or target.eventHandler:
            raise ConfigurationError(
                "callback.handler and event.handler do not go with a mirror, which passes bytes "
                "on as they are"
            )
        if target.serializerClass != DEFAULT_ENCODER:  # as in 0.7.2's own producer.properties
            warn(
                f"serializer.class={target.serializerClass}: has no effect on a mirror, which "
                "passes bytes on as they are"
            )
        target = target.replace(
            producerType=SYNC,
            confirm=True,
            queueEnqueueTimeoutMs=-1,
            serializerClass=DEFAULT_ENCODER,
        )
        return cls(sources, target, topics, streamCount, producerCount, isKeeping)


def _warnOf(
    properties: Mapping[str, str], odd: Mapping[str, tuple[str, str]], warn: Callable[[str], None]
) -> None:
    for key, (value, sentence) in odd.items():
        if properties.get(key) == value:
            warn(f"{key}={value}: has no effect on a mirror: {sentence}")


def _targetOfToday(
    properties: Mapping[str, str], warn: Callable[[str], None]
) -> KafkaProducerSettings:
    for key in ("zk.connect", "broker.list"):
        if key in properties:
            raise ConfigurationError(
                f"{BOOTSTRAP_SERVERS} and {key}: the first is for a target of today's Kafka, the "
                "other for one of 2011; keep one of them"
            )
    for key, reason in _TODAYS_TIMES.items():
        if key in properties:
            warn(f"{key}={properties[key]}: has no effect on a mirror: {reason}")
    target = KafkaProducerSettings.fromProperties(properties, warn)
    if not target.enableIdempotence:
        raise ConfigurationError(
            "enable.idempotence=false: a mirror needs it, to keep the order of each partition"
        )
    return target


def _addressOf(source: ConsumerSettings | KafkaSourceSettings) -> str:
    if isinstance(source, KafkaSourceSettings):
        return ",".join(sorted(source.bootstrapServers))
    return source.zkConnect


def _checkDifferent(
    sources: Sequence[ConsumerSettings | KafkaSourceSettings], target: KafkaProducerSettings
) -> None:
    for source in sources:
        if isinstance(source, KafkaSourceSettings):
            common = {*source.bootstrapServers} & {*target.bootstrapServers}
            if common:
                raise ConfigurationError(
                    f"{BOOTSTRAP_SERVERS}={min(common)} is a source and the target: it would "
                    "mirror what it has mirrored, for ever"
                )


def _sourceOfToday(
    properties: Mapping[str, str], warn: Callable[[str], None]
) -> KafkaSourceSettings:
    if "zk.connect" in properties:
        raise ConfigurationError(
            f"{BOOTSTRAP_SERVERS} and zk.connect: the first is for a source of today's Kafka, the "
            "other for one of 2011; keep one of them"
        )
    for key, (value, sentence) in _TODAYS_CONSUMERS.items():
        if properties.get(key, value) != value:
            warn(f"{key}={properties[key]}: has no effect on a mirror: {sentence}")
    settings = KafkaSourceSettings.fromProperties(properties, warn)
    for key, pattern in (("groups", settings.groups), ("groups.exclude", settings.groupsExclude)):
        try:
            TopicPattern(normalisePattern(pattern))
        except InvalidPatternError as error:
            raise ConfigurationError(f"{key}={pattern}: {error}") from error
    return settings.replace(enableAutoCommit=False, consumerTimeoutMs=-1)


def _source(
    properties: Mapping[str, str], warn: Callable[[str], None]
) -> ConsumerSettings | KafkaSourceSettings:
    if BOOTSTRAP_SERVERS in properties:
        return _sourceOfToday(properties, warn)
    _warnOf(properties, _CONSUMERS, warn)
    settings = ConsumerSettings.fromProperties(properties, warn)
    if not settings.zkConnect:
        raise ConfigurationError("zk.connect is missing: a source is found by its ZooKeeper")
    return settings.replace(
        autoCommitEnable=True, shallowIteratorEnable=False, consumerTimeoutMs=-1
    )


class MirrorService(Service):
    """
    One mirror, started once and stopped once.

    @ivar counters: a L{MirrorCounters}.
    @ivar sources: a L{SourceCluster} for each source of 2011; for each one of today a
        L{KafkaSourceCluster} for each stream.
    @ivar target: a L{TargetCluster} or L{KafkaTargetCluster}.
    """

    _log = Logger()
    name = "pylogbroker-mirror"

    def __init__(
        self,
        reactor: Any,
        settings: MirrorSettings,
        *,
        sourceZookeepers: Callable[[int], IZookeeper] | None = None,
        targetZookeeper: Callable[[], IZookeeper] | None = None,
    ) -> None:
        """
        @param sourceZookeepers: makes an unconnected client for the source with an index; by
            default one of its C{zk.connect}.
        @param targetZookeeper: makes an unconnected client for the target.
        """
        self._reactor = reactor
        self._settings = settings
        self.counters = MirrorCounters()
        self.target: MirrorTarget
        if isinstance(settings.producer, KafkaProducerSettings):
            self.target = KafkaTargetCluster(reactor, settings.producer, settings.producerCount)
        else:
            self.target = TargetCluster(
                reactor, settings.producer, settings.producerCount, targetZookeeper
            )
        self.sources: list[SourceCluster | KafkaSourceCluster] = []
        for index, consumer in enumerate(settings.consumers):
            if isinstance(consumer, KafkaSourceSettings):
                self.sources += [
                    KafkaSourceCluster(
                        reactor,
                        consumer,
                        settings.topics,
                        self.target,
                        settings.producer,
                        self.counters,
                    )
                    for _stream in range(settings.streamCount)
                ]
            else:
                self.sources.append(
                    SourceCluster(
                        reactor,
                        consumer,
                        settings.topics,
                        settings.streamCount,
                        self.target,
                        self.counters,
                        settings.isKeeping,
                        None if sourceZookeepers is None else partial(sourceZookeepers, index),
                    )
                )
        self._starting: Deferred[None] | None = None
        self._reporting = LoopingCall(self._report)
        self._reporting.clock = reactor
        self._reportedCount = 0

    def metricFamilies(self) -> list[Family]:
        """Its metrics, for L{pylogbroker.console.service.MetricsService}."""
        joined: dict[tuple[tuple[str, str], ...], bool] = {}
        for source in self.sources:
            key = tuple(source.labels.items())
            joined[key] = joined.get(key, True) and source.isOwning
        return mirrorFamilies(
            self.counters, ((dict(key), isOwning) for key, isOwning in joined.items())
        )

    def startService(self) -> None:
        """Start, without waiting for the clusters."""
        super().startService()
        self._log.info(
            "Mirroring to {target} from {sources}",
            target=self.target,
            sources=", ".join(map(repr, self.sources)),
        )
        self._starting = Deferred.fromCoroutine(self._start())
        self._starting.addErrback(self._logBug)
        self._reporting.start(REPORT_SECONDS, now=False)

    async def _start(self) -> None:
        await self.target.connect()
        await gatherSettled(
            Deferred.fromCoroutine(source.run()).addErrback(self._logBug) for source in self.sources
        )

    def _logBug(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure("The mirror failed unexpectedly at its start: this is a bug", failure)

    def _report(self) -> None:
        if self.counters.confirmedCount != self._reportedCount:
            self._reportedCount = self.counters.confirmedCount
            self._logCounters("Mirroring")

    def _logCounters(self, what: str) -> None:
        counters = self.counters
        self._log.info(
            "{what}: {confirmedCount} messages ({confirmedSize} bytes) confirmed, "
            "{underWayCount} under way, {repeatedCount} possibly twice",
            what=what,
            confirmedCount=counters.confirmedCount,
            confirmedSize=counters.confirmedSize,
            underWayCount=counters.underWayCount,
            repeatedCount=counters.repeatedCount,
        )

    def stopService(self) -> Deferred[None]:
        """
        Stop in order.

        @return: fires when everything is closed; does not fail.
        """
        super().stopService()
        stopping = Deferred.fromCoroutine(self._stop())
        stopping.addErrback(
            lambda failure: self._log.failure("Stopping failed unexpectedly", failure)
        )
        return stopping

    async def _stop(self) -> None:
        if self._reporting.running:
            self._reporting.stop()
        if self._starting is not None:
            self._starting.cancel()
        await DeferredList([Deferred.fromCoroutine(source.pause()) for source in self.sources])
        idle = self.target.inFlight.whenIdle()
        if not idle.called:
            timeoutMs = self._settings.producer.closeTimeoutMs
            try:
                await idle.addTimeout(timeoutMs / 1000, self._reactor)
            except TimeoutError:
                self._log.error(
                    "The target has not confirmed {underWayCount} messages within {timeoutMs} ms. "
                    "They are not committed, and come again",
                    underWayCount=self.counters.underWayCount,
                    timeoutMs=timeoutMs,
                )
        await DeferredList([Deferred.fromCoroutine(source.leave()) for source in self.sources])
        await self.target.close()
        self._logCounters("Stopped")
