"""
The settings of a mirror: the property files of its sources and its target, and the options of its
command (spec-0.7 tools §7).

Some keys can have only one value in a mirror. It sets them, and warns if a file asks for another
value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pylogbroker.cluster.subscription import WildcardSubscription
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.config.producersettings import DEFAULT_ENCODER, SYNC, ProducerSettings
from pylogbroker.errors import ConfigurationError

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
"""What a file may say to no effect, and why."""


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """
    The settings of a mirror.

    @ivar consumers: of each source.
    @ivar producer: of the target.
    @ivar topics: the mirrored topics.
    @ivar streamCount: streams of each source.
    @ivar producerCount: connections to each target broker.
    @ivar isKeeping: whether a source partition always goes to the same target partition, in order.
    """

    consumers: tuple[ConsumerSettings, ...]
    producer: ProducerSettings
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
        if len({(each.zkConnect, each.groupId) for each in sources}) < len(sources):
            raise ConfigurationError(
                "a source is given twice, with the same zk.connect and groupid; for more streams of one there is --num-streams"
            )
        _warnOf(producer, _PRODUCERS, warn)
        target = ProducerSettings.fromProperties(producer, warn)
        if target.zkConnect and any(each.zkConnect == target.zkConnect for each in sources):
            raise ConfigurationError(
                f"zk.connect={target.zkConnect} is a source and the target: it would mirror what it has mirrored, for ever"
            )
        if isKeeping and not target.zkConnect:
            raise ConfigurationError(
                "with broker.list the brokers pick partitions: to keep partitions, the target must be given by zk.connect"
            )
        if (
            target.serializerClass != DEFAULT_ENCODER
            or target.callbackHandler
            or target.eventHandler
        ):
            raise ConfigurationError(
                "serializer.class, callback.handler and event.handler do not go with a mirror, which passes bytes on as they are"
            )
        target = target.replace(producerType=SYNC, confirm=True, queueEnqueueTimeoutMs=-1)
        return cls(sources, target, topics, streamCount, producerCount, isKeeping)


def _warnOf(
    properties: Mapping[str, str], odd: Mapping[str, tuple[str, str]], warn: Callable[[str], None]
) -> None:
    for key, (value, sentence) in odd.items():
        if properties.get(key) == value:
            warn(f"{key}={value}: has no effect on a mirror: {sentence}")


def _source(properties: Mapping[str, str], warn: Callable[[str], None]) -> ConsumerSettings:
    _warnOf(properties, _CONSUMERS, warn)
    settings = ConsumerSettings.fromProperties(properties, warn)
    if not settings.zkConnect:
        raise ConfigurationError("zk.connect is missing: a source is found by its ZooKeeper")
    return settings.replace(
        autoCommitEnable=True, shallowIteratorEnable=False, consumerTimeoutMs=-1
    )
