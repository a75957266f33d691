"""
A bolt that writes a topic.

What must be true: a tuple is acknowledged only when the brokers have confirmed its message. It
fails when they have not. At least once, its spout then emits it again, and the log may have the
message twice. Messages that wait for their batch are bounded in bytes and in time. While the
brokers take their time, C{process} does: tuples pile up before the bolt, and spouts get to feel it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from json import dumps
from typing import Any, ClassVar

from pylogbroker.config.topologies.logsettings import LogBoltSettings
from pylogbroker.errors import TupleError
from pylogbroker.topologies.api import Bolt, StreamTuple, TopologyContext
from pylogbroker.topologies.log.kafka07log import Kafka07LogWriter
from pylogbroker.topologies.log.kafkalog import KafkaLogWriter
from pylogbroker.topologies.log.logclients import ILogWriter, LogMessage
from pylogbroker.topologies.log.logproperties import logProperties
from pylogbroker.topologies.topology import TICK_TUPLE_FREQ_SECS

TICK_SECONDS = 0.1
"""How long a message waits for its batch at most."""

MESSAGE_OVERHEAD = 32
"""Bytes that a message counts for beside its key and value."""

log = logging.getLogger(__name__)


class LogBolt(Bolt):
    """
    Writes a message for each tuple: its field C{value}, with the field C{key}, if it has one. A
    subclass can make another one of it with C{translate}. Text is encoded as UTF-8, bytes stay,
    C{None} is no key or a tombstone, and everything else is JSON.

    A batch is sent when no more tuples wait, at C{batch.size} bytes, and with each tick tuple:
    every 0.1 s, unless C{topology.tick.tuple.freq.secs} says otherwise.

    Counters: C{log.written} and C{log.failed} messages.
    """

    config: ClassVar[Mapping[str, Any]] = {TICK_TUPLE_FREQ_SECS: TICK_SECONDS}

    def __init__(self, topic: str, properties: Mapping[str, object] | None = None) -> None:
        """
        @param topic: of the messages.
        @param properties: of L{LogBoltSettings}, over those of the component and the topology.
        """
        self._topic = topic
        self._properties = dict(properties or {})
        self._batch: list[tuple[StreamTuple, LogMessage]] = []
        self._size = 0
        self._isFailing = False

    def translate(self, tup: StreamTuple) -> LogMessage | None:
        """
        The message of a tuple; L{None}: there is none, and the tuple is acknowledged.

        @raise TupleError: it has no field C{value}.
        """
        if "value" not in tup.fields:
            raise TupleError(f"{tup.component}.{tup.stream} has no field value to write")
        key = tup["key"] if "key" in tup.fields else None
        return LogMessage(self._topic, _encoded(key), _encoded(tup["value"]))

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """
        @raise ConfigurationError: a property is wrong.
        """
        self._settings = settings = LogBoltSettings.fromProperties(
            logProperties(LogBoltSettings, config, self._properties), log.warning
        )
        self._context = context
        kind = KafkaLogWriter if settings.bootstrapServers else Kafka07LogWriter
        self._writer: ILogWriter = kind(settings, context.seconds, context.random)

    def process(self, tup: StreamTuple) -> None:
        """
        Take a tuple, or send what was collected.

        @raise PylogbrokerError: the cluster refuses what is written, and not only for now.
        """
        if tup.isTick:
            self.flush()
            return
        message = self.translate(tup)
        if message is None:
            self.ack(tup)
            return
        self._batch.append((tup, message))
        self._size += message.size + MESSAGE_OVERHEAD
        if self._size >= self._settings.batchSize:
            self.flush()

    def idle(self) -> None:
        """Send what was collected: nothing more is there to send with it."""
        self.flush()

    def flush(self) -> None:
        """Send what was collected, wait for the confirmation, and acknowledge it."""
        batch, self._batch, self._size = self._batch, [], 0
        if not batch:
            return
        outcomes = self._writer.write([message for _tup, message in batch])
        failures = [each for each in outcomes if each is not None]
        if bool(failures) != self._isFailing:
            self._isFailing = bool(failures)
            log.warning(
                "%d messages were not written: %s" if failures else "Messages are written again",
                *((len(failures), failures[0]) if failures else ()),
            )
        for (tup, _message), failure in zip(batch, outcomes, strict=True):
            if failure is None:
                self.ack(tup)
            else:
                self.fail(tup)
        self._context.counter("log.written", len(batch) - len(failures))
        self._context.counter("log.failed", len(failures))

    def close(self) -> None:
        """Send the rest, and close the connections."""
        self.flush()
        self._writer.close()


def _encoded(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else dumps(value)).encode()
