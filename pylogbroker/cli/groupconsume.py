"""
C{pylogbroker consume --zookeeper}: messages of a whole cluster, as a member of a consumer group.

What must be true: what was committed was printed. We print many messages at a time, and positions are committed by the clock, and when a partition goes to
another member; so messages are taken ahead, and their positions move when they are printed. What is lost sight of in between, because nobody reads it, or we
are killed, or the partition goes while a slow reader holds us up, is printed again by whoever goes on.

When do we come to the end? When nothing has come for a moment, the brokers are asked where the logs of our partitions end. What others in the group have yet
to read is theirs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.cli import CommandError
from pylogbroker.cli.brokerchecks import closeAll
from pylogbroker.cli.groupmember import GroupMember
from pylogbroker.cli.messageformats import MESSAGE_FORMATS
from pylogbroker.cli.streams import Streams, write
from pylogbroker.client.clusterreader import ClusterReader
from pylogbroker.client.offsetlookup import OffsetLookup
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import ConsumedMessage, MessageStream
from pylogbroker.errors import ConsumerTimeoutError, PylogbrokerError

POLL_MS = 250
COMMIT_MS = 1_000
BACKOFF_MS = 500
"""Between attempts to get our share from others, who need a moment to let go of it; a person waits for us."""
WRITE_COUNT = 1_000
"""Messages that are made into one piece of output."""


async def consumeInGroup(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Print messages until the end, or for ever.

    @return: the exit code.
    @raise PylogbrokerError: it did not work out.
    """
    changes = {
        "rebalance.backoff.ms": str(BACKOFF_MS),
        "autocommit.interval.ms": str(COMMIT_MS),
        "autooffset.reset": "smallest" if options.isFromBeginning else "largest",
    }
    member = GroupMember(reactor, options, streams, "console-consumer", POLL_MS, changes)
    registries = ClusterReader(member.zookeeper, streams.say)
    ends = OffsetLookup(
        reactor, registries.broker, options.timeoutMs, template=options.access.brokerEndpoint
    )
    reading = _GroupReading(reactor, member.consumer, ends, options, streams)

    async def leave() -> None:
        await ends.close()
        await member.leave()

    try:
        await member.connect()
        await _checkTopics(registries, options, streams)
        await reading.run()
    except BrokenPipeError:
        pass
    finally:
        await closeAll(Deferred.fromCoroutine(leave()))
        if reading.isUnderWay:
            streams.say(f"read {reading.count:,} messages as {member.consumer.consumerId}")
    return 1 if reading.errorCount else 0


async def _checkTopics(
    registries: ClusterReader, options: argparse.Namespace, streams: Streams
) -> None:
    """
    What is wanted must be there, or L{GroupMember} would wait for it without a word. Who follows may wait for it.

    @raise CommandError: no topic has that name, or matches.
    """
    names = await registries.topics()
    pattern = options.whitelist or options.blacklist
    if pattern is None:
        isThere, wanted = options.topic in names, f"no topic {options.topic}"
    else:
        isThere, wanted = bool(pattern.streamCounts(names)), "no topic that matches"
    if isThere:
        return
    missing = f"there is {wanted}; there are: {', '.join(names) or 'none'}"
    if not options.isFollowing:
        raise CommandError(missing)
    streams.say(f"pylogbroker: {missing}; waiting for it")


class _GroupReading:
    """
    The way of one member.

    @ivar count: messages printed.
    @ivar errorCount: partitions that could not be read on, each time.
    @ivar isUnderWay: whether this member has joined.
    """

    def __init__(
        self,
        reactor: Any,
        consumer: ConsumerConnector,
        ends: OffsetLookup,
        options: argparse.Namespace,
        streams: Streams,
    ) -> None:
        self._reactor = reactor
        self._consumer = consumer
        self._options = options
        self._streams = streams
        self._ends = ends
        self.count = self.errorCount = 0
        self.isUnderWay = False

    async def _join(self) -> MessageStream:
        options, consumer = self._options, self._consumer
        pattern = options.whitelist or options.blacklist
        if pattern is not None:
            [stream] = await consumer.createMessageStreamsByFilter(pattern)
        else:
            [stream] = (await consumer.createMessageStreams({options.topic: 1}))[options.topic]
        return stream

    async def run(self) -> None:
        """From the start to the end."""
        options = self._options
        stream = await self._join()
        self.isUnderWay = True
        lastMs = self._nowMs()
        while self.count < options.countMax:
            ahead = stream.poll(min(WRITE_COUNT, options.countMax - self.count))
            if ahead.messages:
                await self._print(ahead.messages)
                stream.acknowledge(ahead)
                lastMs = self._nowMs()
            if ahead.error is not None:
                self._failed(ahead.error)
            elif not ahead.messages:
                try:
                    await stream.wait()
                except ConsumerTimeoutError:
                    if not options.isFollowing and await self._isAtEnd(self._nowMs() - lastMs):
                        return

    def _nowMs(self) -> int:
        return int(self._reactor.seconds() * 1000)

    def _failed(self, error: Exception) -> None:
        """A partition cannot be read on. Who follows the others goes on with them."""
        if not isinstance(error, PylogbrokerError):
            raise error
        if not self._options.isFollowing:
            raise CommandError(str(error)) from error
        self.errorCount += 1
        self._streams.say(f"pylogbroker: {error}")

    async def _print(self, messages: Sequence[ConsumedMessage]) -> None:
        shape = MESSAGE_FORMATS[self._options.format]
        lines = [
            shape(each.value, each.topic, each.partition, each.nextOffset) for each in messages
        ]
        await write(self._reactor, self._streams.output, b"\n".join(lines) + b"\n")
        self.count += len(messages)

    async def _isAtEnd(self, idleMs: int) -> bool:
        """
        Whether all that is ours was read.

        @param idleMs: for how long nothing has come.
        @raise CommandError: that cannot be found out, or does not become so, within the time-out.
        """
        consumer = self._consumer
        reason = "this member has not got its share of the partitions"
        if consumer.isOwning:
            positions = consumer.positions
            try:
                for place in consumer.owned:
                    end = await self._ends.end(place.topic, place.partition)
                    position = positions.get(place)
                    if position is None or position < end:
                        reason = f"{place} is at {'no offset yet' if position is None else position}, and ends at {end}"
                        break
                else:
                    return True
            except PylogbrokerError as error:
                reason = str(error)
        if idleMs > self._options.timeoutMs:
            raise CommandError(
                f"nothing has come for {idleMs:,} ms, and that is not the end: {reason}"
            )
        return False
