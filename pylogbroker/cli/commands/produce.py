"""
C{produce}: each line of a file, or of standard input, becomes a message.

Lines of a file are gathered into batches. Lines of a pipe or a terminal leave at once, in a batch
only with lines that were read together: a person expects a typed line to be there.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    addBatching,
    addBroker,
    addJson,
    addMaxMessageSize,
    addPartition,
    addTopic,
    option,
    rejectOptions,
    separator,
)
from pylogbroker.cli.output import Progress, asJson, formatBytes
from pylogbroker.cli.publisher import BrokerPublisher, ClusterPublisher, newPublisher
from pylogbroker.cli.session import announceWait
from pylogbroker.cli.streams import LineDecoder, Streams, inputSize, openInput, read
from pylogbroker.errors import MessageTooLargeError, PylogbrokerError

_EXAMPLES = """\
examples:
  pylogbroker produce /var/log/dpkg.log --topic dpkg
  tail -f /var/log/syslog | pylogbroker produce - --broker log1:9092 --topic syslog
  pylogbroker produce orders.tsv --zookeeper zk1:2181 --topic orders --key-separator '\\t' --json
"""


def addArguments(parser: ArgumentParser) -> None:
    """Arguments of C{produce}."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "file", metavar="FILE", help="its lines are the messages; - is standard input"
    )
    addBroker(parser, hasCluster=True)
    addTopic(parser)
    addPartition(parser, None, "; -1: the broker chooses one for each batch; not with --zookeeper")
    option(
        parser,
        "--key-separator TEXT",
        "with --zookeeper: the text between key and message in a line; \\t is a tab. The key "
        "chooses the partition and is not sent. A line without TEXT has no key and goes anywhere",
        separator,
    )
    addBatching(parser)
    addMaxMessageSize(parser, "line", "the broker's")
    addJson(parser, "print the outcome as a JSON document on standard output")


def prepare(options: Namespace, streams: Streams) -> None:
    """
    Check the options, and open the file before the reactor runs: opening a named pipe waits for its
    writer, and Ctrl-C must end that.

    @raise CommandError: the file cannot be opened.
    """
    if options.zookeeper is None:
        rejectOptions(
            options,
            {"keySeparator": "--key-separator"},
            "needs --zookeeper: at a single broker, a key chooses nothing",
        )
        options.partition = options.partition or 0
    else:
        rejectOptions(
            options,
            {"partition": "--partition"},
            "not with --zookeeper: there the key, or chance, chooses the partition",
        )
    try:
        options.descriptor, options.name = openInput(options.file, streams.input)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"cannot read {options.file!r}: {getattr(error, 'strerror', None) or error}"
        ) from error


async def produce(options: Namespace, streams: Streams) -> int:
    """Publish the lines of C{options.descriptor}."""
    publisher = newPublisher(options, streams)
    try:
        await _announced(options, streams, publisher.check())
        await _publish(options, streams, publisher)
    except CancelledError:
        streams.say(f"ended after {publisher.sentCount:,} messages")
        raise
    finally:
        await publisher.close()
    if options.json:
        outcome = {
            "topic": options.topic,
            "messageCount": publisher.sentCount,
            "payloadSize": publisher.sentSize,
            "requestCount": publisher.batchCount,
        }
        await streams.show(asJson(outcome))
    size, count = formatBytes(publisher.sentSize), publisher.batchCount
    streams.say(
        f"sent {publisher.sentCount:,} messages ({size}) in {count:,} requests "
        f"to {publisher.destination}"
    )
    return 0


async def _announced(
    options: Namespace,
    streams: Streams,
    waiting: Coroutine[Any, Any, None],
    progress: Progress | None = None,
) -> None:
    """Wait for the broker or the cluster; with C{progress}, until it has taken the messages."""
    if options.zookeeper is None:
        what = f"the broker at {options.broker}"
    else:
        what = f"{'the cluster' if progress else 'ZooKeeper'} at {options.zookeeper}"
    await announceWait(
        streams,
        Deferred.fromCoroutine(waiting),
        f"{what} to take what was sent" if progress else what,
        options.timeoutMs,
        progress,
    )


async def _publish(
    options: Namespace,
    streams: Streams,
    publisher: BrokerPublisher | ClusterPublisher,
) -> None:
    size = inputSize(options.descriptor)
    progress = Progress(streams.errors, streams.reactor.seconds, size)
    decoder = LineDecoder(options.maxMessageSize)

    async def wait(sending: Coroutine[Any, Any, None]) -> None:
        await _announced(options, streams, sending, progress)

    reason = "it is longer"
    try:
        data = b"begin"
        while data and decoder.overlong is None:
            data = await _read(options, streams)
            lines = decoder.feed(data) if data else decoder.finish()
            await wait(publisher.add(lines))
            if size is None:
                await wait(publisher.flush())
            progress.update(publisher.sentCount, publisher.sentSize)
        await wait(publisher.flush())
        await wait(publisher.confirm())
    except MessageTooLargeError as error:
        decoder.overlong, reason = publisher.sentCount + 1, error.reason
        await wait(publisher.confirm())
    except CommandError:
        raise
    except PylogbrokerError as error:
        raise publisher.failed(error, "lines") from error
    finally:
        progress.clear()
    if decoder.overlong is not None:
        before = "nothing was sent" if decoder.overlong == 1 else "the lines before it were sent"
        raise CommandError(
            f"line {decoder.overlong:,} of {options.name} is too long for a message of "
            f"{options.maxMessageSize:,} bytes: {reason}; {before}"
        )


async def _read(options: Namespace, streams: Streams) -> bytes:
    try:
        return await read(streams.reactor, options.descriptor)
    except OSError as error:
        raise CommandError(f"cannot read {options.name}: {error.strerror}") from error
