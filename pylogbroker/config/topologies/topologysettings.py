"""
The settings of the processes of a topology. 0.7 has none; keys of C{zk} keep their names.

A property file of a topology may have other keys, too: those of the topology's configuration, such
as C{topology.message.timeout.secs}, over those of its file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Self

from pylogbroker.config.keys import ConfigKey, Settings, ownKey
from pylogbroker.config.properties import Properties
from pylogbroker.config.propertytypes import (
    NOT_EMPTY,
    NOT_NEGATIVE,
    POSITIVE,
    SIZE,
    TEXT,
    Integer,
    Warn,
    ZookeeperServers,
)
from pylogbroker.config.securitysettings import ZK_ACL, ZK_DIGEST
from pylogbroker.errors import ConfigurationError


class TopologySettings(Settings):
    """The settings of a topology's processes; sizes are bytes."""

    zkConnect = ConfigKey(
        "zk.connect",
        ZookeeperServers(),
        "",
        "ZooKeeper's servers, with an optional chroot, which must exist:"
        " `zk1:2181,zk2:2181,zk3:2181/topologies`. Empty: `topology submit` starts a server of its"
        " own.",
    )
    zkSessionTimeoutMs = ConfigKey(
        "zk.sessiontimeout.ms",
        POSITIVE,
        "6000",
        "The session time-out in milliseconds: a master or a container without a heartbeat for this"
        " time is replaced. The server limits the value.",
    )
    zkDigest = ZK_DIGEST
    zkAcl = ZK_ACL
    stateDir = ownKey(
        "state.dir",
        NOT_EMPTY,
        "topology-state",
        "The folder of logs and metrics, with a folder for each topology.",
    )
    restartDelayMaxMs = ownKey(
        "restart.delay.max.ms",
        Integer(200),
        "10000",
        "The longest time in milliseconds until a process that has died is started again.",
    )
    processSilenceMaxMs = ownKey(
        "process.silence.max.ms",
        Integer(0),
        "15000",
        "How long a process may give no sign of life, in milliseconds: then it has hung, or was"
        " stopped, and is killed and started again. A component may work, or sleep, for longer."
        " 0: for ever.",
    )
    streamManagerHighWaterMark = ownKey(
        "stream.manager.high.water.mark",
        SIZE,
        "4194304",
        "The bytes that wait for an instance or for another stream manager, above which all spouts"
        " stop.",
    )
    streamManagerLowWaterMark = ownKey(
        "stream.manager.low.water.mark",
        SIZE,
        "2097152",
        "The bytes that wait, below which spouts go on.",
    )
    streamManagerQueueSizeMax = ownKey(
        "stream.manager.queue.size.max",
        SIZE,
        "67108864",
        "The bytes that wait, above which tuples are dropped and counted.",
    )
    instanceFlushSize = ownKey(
        "instance.flush.size",
        SIZE,
        "32768",
        "The bytes of tuples behind which an instance sends them.",
    )
    instanceFlushDelayMs = ownKey(
        "instance.flush.delay.ms",
        POSITIVE,
        "5",
        "The time in milliseconds behind which an instance sends its tuples, however few they are.",
    )
    metricsIntervalMs = ownKey(
        "metrics.interval.ms",
        POSITIVE,
        "10000",
        "The time in milliseconds between two reports of each process.",
    )
    metricsPrometheusPort = ownKey(
        "metrics.prometheus.port",
        Integer(0, 65_535),
        "0",
        "The port of 127.0.0.1 at which the metrics manager of container 1 serves /metrics; those"
        " of the other containers have the next ports. 0: none does.",
    )
    metricsFileSizeMax = ownKey(
        "metrics.file.size.max",
        NOT_NEGATIVE,
        "10485760",
        "The size of each container's file `metrics.jsonl`; then it is renamed to"
        " `metrics.jsonl.1`, in place of an earlier one. 0: there is none.",
    )
    metricsTopic = ownKey(
        "metrics.topic",
        TEXT,
        "",
        "A topic of today's Kafka that gets all metrics, as JSON; empty: none does.",
    )
    metricsBootstrapServers = ownKey(
        "metrics.bootstrap.servers",
        TEXT,
        "",
        "With `metrics.topic`, the brokers to ask first, `host:port,host:port`.",
    )
    logFileSizeMax = ownKey(
        "log.file.size.max",
        SIZE,
        "10485760",
        "The size of a process's log file, behind which a new one is begun.",
    )
    logFileCountMax = ownKey(
        "log.file.count.max",
        POSITIVE,
        "3",
        "The earlier log files of a process that stay.",
    )

    @classmethod
    def split(
        cls, properties: Properties, warn: Warn = lambda message: None
    ) -> tuple[Self, dict[str, str]]:
        """
        Settings, and the keys that are the topology's.

        @param warn: called with a sentence for each of these that looks like a misspelt one of
            ours.
        @raise ConfigurationError: as C{fromProperties}.
        """
        known = {key.key for key in cls.keys}
        own = Properties()
        others = {}
        for key, value in properties.items():
            if key in known:
                own.put(key, value, properties.location(key))
                continue
            others[key] = value
            if near := difflib.get_close_matches(key, known, 1, 0.85):
                warn(f"{key}={value} is taken for a key of the topology; did you mean {near[0]}?")
        return cls.fromProperties(own, warn), others

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        values["zkConnect"] = values["zkConnect"].strip()
        low, high = values["streamManagerLowWaterMark"], values["streamManagerHighWaterMark"]
        if low >= high:
            raise ConfigurationError(
                f"stream.manager.low.water.mark={low} must be below"
                f" stream.manager.high.water.mark={high}"
            )
        if high >= values["streamManagerQueueSizeMax"]:
            raise ConfigurationError(
                f"stream.manager.high.water.mark={high} must be below"
                f" stream.manager.queue.size.max={values['streamManagerQueueSizeMax']}"
            )
        if values["metricsTopic"] and not values["metricsBootstrapServers"]:
            raise ConfigurationError("metrics.topic needs metrics.bootstrap.servers")
