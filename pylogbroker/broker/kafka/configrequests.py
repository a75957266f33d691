"""
Settings of topics, groups and the broker for clients; a module of its own, since settings have
rules that other requests do not need.

A setting's source is the most special one that has it: the topic, the broker while it runs, all
brokers while they run, the broker's file, the default. The others are its synonyms, in this order.
The broker's settings that can be changed while it runs are the defaults of topic settings
(C{log.retention.ms} for C{retention.ms}), and the rates of throttled replicas; all others are
shown, and refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import IntEnum
from itertools import dropwhile
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler, RepeatLimit
from pylogbroker.broker.kafka.topics import TopicManager, checkName
from pylogbroker.cluster.kafka.metadatalog import beginningOf
from pylogbroker.cluster.metadataimage import (
    BROKER,
    CLUSTER_DEFAULT,
    GROUP,
    TOPIC,
    ConfigRecord,
    MetadataImage,
    Record,
)
from pylogbroker.config.topicconfigs import (
    DYNAMIC_CONFIGS,
    LONG_MAX,
    OTHER_UNITS,
    SERVER_CONFIGS,
    THROTTLE_CONFIGS,
    TOPIC_CONFIGS,
    ConfigType,
    EffectiveConfigs,
    checkTopicConfig,
)
from pylogbroker.coordinator.groupconfigs import GROUP_CONFIGS, checkGroupConfig
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.replication.controller import CLUSTER_WIDE, changeSettings, settle


class ResourceType(IntEnum):
    """Whose settings; as on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from; as on the wire."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs does to a setting; as on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


CONFIGURED_GROUP_COUNT_MAX = 10_000
CONFIGURED_GROUP_LENGTH_MAX = 1_000
"""
Groups that have settings, and characters of their names: the metadata keep settings of groups that
are not there, too.
"""


class BrokerConfig(NamedTuple):
    """
    A setting of the broker, as Kafka calls it.

    @ivar value: of its file; L{None}: it has none, and the default holds.
    @ivar doc: one sentence.
    """

    type: ConfigType
    default: str | None
    doc: str
    value: str | None = None


_DEFAULTS: Mapping[str, str] = {
    **{key: each.default for key, each in DYNAMIC_CONFIGS.items() if key not in OTHER_UNITS},
    "log.preallocate": "false",
    "log.retention.hours": "168",
    "log.roll.hours": "168",
    "log.roll.jitter.hours": "0",
    "log.flush.scheduler.interval.ms": str(LONG_MAX),
}
"""By the broker's keys. Of keys that mean the same, that with the largest unit has the default."""

_SAME: Mapping[str, tuple[str, ...]] = {
    key: (first, *(other for other, _ in others))
    for first, others in OTHER_UNITS.items()
    for key in (first, *(other for other, _ in others))
}
"""The keys that mean the same in other units, in the order in which they count."""

Synonym = tuple[str, str, ConfigSource]


def configSource(
    topics: TopicManager, configs: Mapping[str, str], name: str
) -> tuple[ConfigSource, list[Synonym]]:
    """
    The source of a topic's setting, and its synonyms.

    @param configs: of the topic itself.
    """
    found: list[Synonym] = []
    if name in configs:
        found.append((name, configs[name], ConfigSource.DYNAMIC_TOPIC))
    key = TOPIC_CONFIGS[name].serverKey
    if key:
        found += _serverSynonyms(topics, key, topics.staticValues, _DEFAULTS)
    if found:
        return found[0][2], found
    isFromOther = name in topics.staticConfigs  # from a key with another unit
    return ConfigSource.STATIC_BROKER if isFromOther else ConfigSource.DEFAULT, found


def _serverSynonyms(
    topics: TopicManager, key: str, static: Mapping[str, str], defaults: Mapping[str, str | None]
) -> list[Synonym]:
    """
    The values of a key of the broker, and of those that mean the same; as Kafka, none of what comes
    before its own first one.
    """
    configs = topics.image.brokerConfigs
    sources: list[tuple[ConfigSource, Mapping[str, str | None]]] = [
        (ConfigSource.DYNAMIC_BROKER, configs.get(str(topics.brokerId), {})),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER, configs.get("", {})),
        (ConfigSource.STATIC_BROKER, static),
        (ConfigSource.DEFAULT, defaults),
    ]
    found = [
        (name, value, source)
        for source, values in sources
        for name in _SAME.get(key, (key,))
        if (value := values.get(name)) is not None
    ]
    return list(dropwhile(lambda each: each[0] != key, found))


def _invalid(text: str | None = None) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def _unknownType(number: int) -> KafkaError:
    return _invalid(f"Unknown resource type {number}")


class ConfigRequests:
    """The handlers that show and change settings."""

    def __init__(
        self, topics: TopicManager, brokerId: int, brokerConfigs: Mapping[str, BrokerConfig]
    ) -> None:
        """@param brokerConfigs: by Kafka's names, without the defaults of topic settings."""
        self._topics = topics
        self._brokerId = brokerId
        self._brokerConfigs = brokerConfigs

    @property
    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describeConfigs,
            ApiKey.ALTER_CONFIGS: self.alterConfigs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.incrementalAlterConfigs,
            ApiKey.LIST_CONFIG_RESOURCES: self.listConfigResources,
        }

    # -- DescribeConfigs

    def describeConfigs(self, header: RequestHeader, request: Any, state: ConnectionState) -> Any:
        """Handle DescribeConfigs; as L{Handler}."""
        cls = messages.DescribeConfigsResponse
        isValid = all(each.resourceType in _TYPES for each in request.resources)
        results = []
        limit = RepeatLimit()
        for each in request.resources:
            if not limit.admits(_identity(each)):
                continue
            result = cls.DescribeConfigsResult(
                errorMessage="",
                resourceType=each.resourceType,
                resourceName=each.resourceName,
            )
            try:
                if not isValid:
                    raise _invalid()
                result.configs = self._describe(each, request)
            except KafkaError as error:
                result.errorCode = error.code
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    result.errorMessage = error.text
            results.append(result)
        return cls(results=results)

    def _describe(self, resource: Any, request: Any) -> list[Any]:
        name = resource.resourceName
        if resource.resourceType == ResourceType.TOPIC:
            checkName(name)
            topic = self._topics.image.topics.get(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            effective = self._topics.configs(topic)
            wanted = _wanted(resource, effective)
            return [self._topicConfig(effective, each, request) for each in wanted]
        if resource.resourceType == ResourceType.BROKER:
            if name:
                self._checkBroker(name, "Broker", " or empty string, but")
                # As by Kafka, those that are only dynamic are there when they are set.
                found = (each for each in THROTTLE_CONFIGS if self._isSet(each, name))
                names = sorted((*self._brokerConfigs, *SERVER_CONFIGS, *found))
                wanted = _wanted(resource, names)
            else:
                names = [each for each in DYNAMIC_CONFIGS if self._isSet(each)]
                wanted = _wanted(resource, names)
            return [self._brokerConfig(each, request, bool(name)) for each in wanted]
        if resource.resourceType == ResourceType.GROUP:
            if not name:
                raise _invalid("Group name must not be empty")
            wanted = _wanted(resource, GROUP_CONFIGS)
            return [self._groupConfig(name, each, request) for each in wanted]
        kind = ResourceType(resource.resourceType).name
        raise _invalid(f"Unsupported resource type: {kind}")

    def _isSet(self, key: str, *owners: str) -> bool:
        """Whether a setting is changed while brokers run: of all, or of one of C{owners}."""
        configs = self._topics.image.brokerConfigs
        return any(key in configs.get(each, {}) for each in ("", *owners))

    def _checkBroker(self, name: str, kind: str, expected: str) -> None:
        try:
            brokerId = int(name)
        except ValueError:
            raise _invalid(f"{kind} id must be an integer, but it is: {name}") from None
        if brokerId != self._brokerId:
            raise _invalid(
                f"Unexpected broker id, expected {self._brokerId}{expected} received {name}"
            )

    def _topicConfig(self, effective: EffectiveConfigs, name: str, request: Any) -> Any:
        config = TOPIC_CONFIGS[name]
        _, synonyms = configSource(self._topics, effective.topic, name)
        return _result(name, effective[name], config.type, config.doc, synonyms, request)

    def _groupConfig(self, group: str, name: str, request: Any) -> Any:
        image, config = self._topics.image, GROUP_CONFIGS[name]
        key, static = config.serverKey, self._topics.staticValues
        synonyms = _serverSynonyms(self._topics, key, static, {key: config.default})
        configs = image.groupConfigs.get(group, {})
        if name in configs:
            synonyms = [(name, configs[name], ConfigSource.DYNAMIC_GROUP), *synonyms]
        return _result(name, synonyms[0][1], config.type, config.doc, synonyms, request)

    def _brokerConfig(self, name: str, request: Any, isOfBroker: bool) -> Any:
        config = DYNAMIC_CONFIGS.get(name)
        if config is not None:
            synonyms = _serverSynonyms(self._topics, name, self._topics.staticValues, _DEFAULTS)
            if not isOfBroker:
                synonyms = [
                    each for each in synonyms if each[2] is ConfigSource.DYNAMIC_DEFAULT_BROKER
                ]
            value = synonyms[0][1] if synonyms else None
            return _result(name, value, config.type, config.doc, synonyms, request)
        known = self._brokerConfigs[name]
        static = self._topics.staticValues
        if known.value is not None:
            static = {**static, name: known.value}
        synonyms = _serverSynonyms(self._topics, name, static, {**_DEFAULTS, name: known.default})
        value = synonyms[0][1] if synonyms else None
        result = _result(name, value, known.type, known.doc, synonyms, request)
        result.readOnly = True
        return result

    # -- AlterConfigs

    def alterConfigs(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle AlterConfigs, which replaces all settings of a resource; as L{Handler}."""

        def changed(
            resource: Any, current: Mapping[str, str], default: Callable[[str], str]
        ) -> dict[str, str | None]:
            made: dict[str, str | None] = dict.fromkeys(current)
            return {**made, **{each.name: each.value for each in resource.configs}}

        cls = messages.AlterConfigsResponse
        return Deferred.fromCoroutine(self._alter(request, cls, changed))

    def incrementalAlterConfigs(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle IncrementalAlterConfigs; as L{Handler}."""
        cls = messages.IncrementalAlterConfigsResponse
        return Deferred.fromCoroutine(self._alter(request, cls, _incrementallyChanged))

    async def _alter(self, request: Any, cls: Any, changed: Changed) -> Any:
        counts = Counter((each.resourceType, each.resourceName) for each in request.resources)

        async def alter(resource: Any) -> Any:
            result = cls.AlterConfigsResourceResponse(
                errorMessage=None,
                resourceType=resource.resourceType,
                resourceName=resource.resourceName,
            )
            try:
                if counts[resource.resourceType, resource.resourceName] > 1:
                    raise _invalid("Each resource must appear at most once.")
                self._check(resource)
                await self._change(
                    lambda image: self._decide(image, resource, changed, request.validateOnly)
                )
            except PylogbrokerError as error:
                found = errorOf(error)
                result.errorCode, result.errorMessage = found.code, found.text
            return result

        return cls(responses=await gatherInBatches(alter, request.resources))

    async def _change(self, settings: Callable[[MetadataImage], list[Record]]) -> None:
        """
        Change settings, and what goes with them in a cluster: those that were eligible to lead
        are not any more, before C{min.insync.replicas} becomes lower. What does not fit into one
        change is split.
        """

        def decide(image: MetadataImage) -> tuple[list[Record], tuple[bool, bool]]:
            wanted = settings(image)
            isOfReplicas = bool(image.brokers) and any(map(_isOfReplicas, wanted))
            if not isOfReplicas:
                return wanted, (True, False)
            some = beginningOf(changeSettings(image, wanted))
            return some, (wanted[-1] in some, True)

        def settleMore(image: MetadataImage) -> tuple[list[Record], bool]:
            some = beginningOf(settle(image))
            return some, bool(some)

        isChanged = hasMore = False
        while not isChanged:
            isChanged, hasMore = await self._topics.change(decide)
        while hasMore:
            hasMore = await self._topics.change(settleMore)

    def _check(self, resource: Any) -> None:
        names = [each.name for each in resource.configs]
        if len(set(names)) < len(names):
            raise _invalid("Error due to duplicate config keys")
        given = [
            each
            for each in resource.configs
            if getattr(each, "configOperation", None) != ConfigOperation.DELETE
        ]
        missing = [each.name for each in given if each.value is None]
        if missing:
            raise _invalid(f"Null value not supported for : {', '.join(missing)}")
        if resource.resourceType == ResourceType.BROKER:
            if resource.resourceName:
                self._checkBroker(resource.resourceName, "Node", ", but")
            unknown = [each.name for each in given if each.name not in DYNAMIC_CONFIGS]
            if unknown:
                text = f"Cannot update these configs dynamically: [{', '.join(unknown)}]"
                raise _invalid(text)
        elif resource.resourceType not in (ResourceType.TOPIC, ResourceType.GROUP):
            raise _unknownType(resource.resourceType)

    def _decide(
        self, image: MetadataImage, resource: Any, changed: Changed, validateOnly: bool
    ) -> list[Record]:
        name = resource.resourceName
        if resource.resourceType == ResourceType.TOPIC:
            if not name:
                raise _invalid("Default topic resources are not allowed.")
            checkName(name)
            topic = image.topics.get(name)
            current = {} if topic is None else topic.configs
            changes = changed(resource, current, self._topicDefault)
            checked = _checked(changes, checkTopicConfig)
            if topic is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
                )
            kind, owner = TOPIC, str(topic.topicId)
        elif resource.resourceType == ResourceType.GROUP:
            if not name:
                raise _invalid("Default group resources are not allowed.")
            kind, owner = GROUP, name
            current = image.groupConfigs.get(name, {})
            changes = changed(resource, current, self._topicDefault)
            checked = _checked(changes, checkGroupConfig)
            if any(value is not None for value in checked.values()):
                _checkRoom(image, name)
        else:
            kind, owner = (BROKER if name else CLUSTER_DEFAULT), name
            current = image.brokerConfigs.get(name, {})
            changes = changed(resource, current, self._brokerDefault)
            checked = _checked(changes, lambda key, value: DYNAMIC_CONFIGS[key].check(value))
            if image.brokers:
                _checkClusterWide(name, current, checked)
        if validateOnly:
            return []
        return [
            ConfigRecord(kind, owner, key, value)
            for key, value in checked.items()
            if current.get(key) != value
        ]

    def _topicDefault(self, name: str) -> str:
        return EffectiveConfigs({}, self._topics.serverConfigs)[name]

    def _brokerDefault(self, name: str) -> str:
        return EffectiveConfigs({}, self._topics.staticConfigs)[_TOPIC_NAMES[name]]

    # -- ListConfigResources

    def listConfigResources(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Any:
        """Handle ListConfigResources; as L{Handler}. Version 0 asks for client metrics alone."""
        cls = messages.ListConfigResourcesResponse
        wanted = request.resourceTypes
        if header.apiVersion == 0:
            wanted = [ResourceType.CLIENT_METRICS]
        elif any(each not in _TYPES for each in wanted):
            return cls(errorCode=ErrorCode.UNSUPPORTED_VERSION)
        names = {
            ResourceType.TOPIC: self._topics.image.topics,
            ResourceType.BROKER: (str(self._brokerId),),
            ResourceType.BROKER_LOGGER: (str(self._brokerId),),
            ResourceType.GROUP: self._topics.image.groupConfigs,
        }
        return cls(
            configResources=[
                cls.ConfigResource(resourceName=name, resourceType=kind)
                for kind in dict.fromkeys(wanted or ResourceType)
                for name in names.get(kind, ())
            ]
        )


def _isOfReplicas(record: Record) -> bool:
    """Whether a setting decides who may lead."""
    return isinstance(record, ConfigRecord) and record.name in CLUSTER_WIDE


def _checkClusterWide(
    broker: str, current: Mapping[str, str], changes: Mapping[str, str | None]
) -> None:
    """
    All brokers of a cluster must agree on who may lead.

    @param broker: whose settings change; C{""}: the defaults of all.
    @raise KafkaError: a setting would be another one on one broker; or what the brokers' files say
        would seem to be in force.
    """
    for name, value in changes.items():
        if name not in CLUSTER_WIDE or current.get(name) == value:
            continue
        if broker and value is not None:
            text = (
                f"{name} is the same for all brokers of a cluster: change it for a topic, or the"
                " default of all brokers"
            )
            raise KafkaError(ErrorCode.INVALID_CONFIG, text)
        if not broker and value is None:
            text = f"The cluster's default of {name} cannot be removed: set it to another value"
            raise KafkaError(ErrorCode.INVALID_CONFIG, text)


Changed = Callable[[Any, Mapping[str, str], Callable[[str], str]], dict[str, str | None]]
"""
C{changed(resource, current, default)}: new values by name, where L{None} removes one.
"""

_TYPES = frozenset(map(int, ResourceType))
_TOPIC_NAMES = {each.serverKey: each.name for each in TOPIC_CONFIGS.values() if each.serverKey}


def _identity(resource: Any) -> tuple[int, str | int]:
    """Whose settings are asked for; a broker's number can be written in many ways."""
    kind, name = resource.resourceType, resource.resourceName
    if kind == ResourceType.BROKER:
        with suppress(ValueError):
            return kind, int(name)
    return kind, name


def _wanted(resource: Any, names: Iterable[str]) -> list[str]:
    keys = resource.configurationKeys
    return [name for name in names if not keys or name in keys]


def _result(
    name: str,
    value: str | None,
    type: ConfigType,
    doc: str,
    synonyms: list[Synonym],
    request: Any,
) -> Any:
    cls = messages.DescribeConfigsResponse
    shown = synonyms if request.includeSynonyms else []
    return cls.DescribeConfigsResourceResult(
        name=name,
        value=value,
        configSource=synonyms[0][2] if synonyms else ConfigSource.DEFAULT,
        synonyms=[
            cls.DescribeConfigsSynonym(name=key, value=text, source=source)
            for key, text, source in shown
        ],
        configType=type,
        documentation=doc if request.includeDocumentation else None,
    )


def _incrementallyChanged(
    resource: Any, current: Mapping[str, str], default: Callable[[str], str]
) -> dict[str, str | None]:
    made: dict[str, str | None] = {}
    for each in resource.configs:
        name, value, operation = each.name, each.value, each.configOperation
        if operation == ConfigOperation.DELETE:
            value = None
        elif operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            config = TOPIC_CONFIGS.get(name) or DYNAMIC_CONFIGS.get(name)
            if config is None or config.type is not ConfigType.LIST:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Can't {ConfigOperation(operation).name} to key {name} because its type is"
                    " not LIST.",
                )
            text = current[name] if name in current else default(name)
            parts = text.split(",") if text else []
            named = value.split(",")
            if operation == ConfigOperation.APPEND:
                parts += [part for part in dict.fromkeys(named) if part not in parts]
            else:
                parts = [part for part in parts if part not in named]
            value = ",".join(parts)
        elif operation != ConfigOperation.SET:
            raise _invalid("Unknown operations type")
        made[name] = value
    return made


def _checkRoom(image: MetadataImage, group: str) -> None:
    isFull = len(image.groupConfigs) >= CONFIGURED_GROUP_COUNT_MAX
    if len(group) > CONFIGURED_GROUP_LENGTH_MAX or (isFull and group not in image.groupConfigs):
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Only {CONFIGURED_GROUP_COUNT_MAX} groups may have settings, and their names"
            f" {CONFIGURED_GROUP_LENGTH_MAX} characters.",
        )


def _checked(
    changes: Mapping[str, str | None], check: Callable[[str, str], str]
) -> dict[str, str | None]:
    try:
        return {key: None if value is None else check(key, value) for key, value in changes.items()}
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
