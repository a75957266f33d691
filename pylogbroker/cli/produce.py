"""
C{pylogbroker produce}: each line of a file, or of standard input, becomes a message.

Lines from a file are gathered into batches. Lines from a pipe or a terminal go out as they come, in batches only as far as several come at once:
whoever types a line expects it to be there.

They go to one partition of one broker, or, with C{--zookeeper}, to all brokers of a cluster; there a key that stands before a line says where.
"""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    addBatching,
    addBroker,
    addPartition,
    addTopic,
    endpointOf,
    positive,
    rejectOptions,
    separator,
)
from pylogbroker.cli.brokerchecks import announced
from pylogbroker.cli.clusterpublishing import ClusterPublisher
from pylogbroker.cli.linedecoder import LineDecoder
from pylogbroker.cli.progress import Progress, formatBytes
from pylogbroker.cli.publishing import Publisher
from pylogbroker.cli.streams import Streams, inputSize, openInput, read
from pylogbroker.errors import MessageTooLargeError, PylogbrokerError

_EXAMPLES = """\
examples:
  pylogbroker produce /var/log/dpkg.log --topic dpkg
  tail -f /var/log/syslog | pylogbroker produce - --broker log1:9092 --topic syslog --compression gzip
  pylogbroker produce orders.tsv --zookeeper zk1:2181 --topic orders --key-separator '\\t'
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "file",
        metavar="FILE",
        help="its lines are the messages, without their line feeds; - is standard input",
    )
    addBroker(parser, hasCluster=True)
    addTopic(parser)
    addPartition(parser, None, "; -1: the broker chooses one for each batch; not with --zookeeper")
    parser.add_argument(
        "--key-separator", dest="separator", metavar="TEXT", type=separator,
        help="with --zookeeper: what stands before it in a line is the key, which says what partition the rest goes to, and is not sent; "
        "a line without it has no key, and goes anywhere; \\t is a tab",
    )  # fmt: skip
    addBatching(parser)
    parser.add_argument(
        "--max-message-size", dest="payloadSizeMax", metavar="BYTES", type=positive, default=1_000_000,
        help="a longer line is an error; set it to the broker's max.message.size if that is less, or it drops such lines without a word (%(default)s)",
    )  # fmt: skip


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Judge what belongs together."""
    if options.zookeeper is None:
        rejectOptions(
            parser,
            options,
            {"separator": "--key-separator"},
            "needs --zookeeper: at a single broker, a key chooses nothing",
        )
        options.partition = options.partition or 0
    else:
        rejectOptions(
            parser,
            options,
            {"partition": "--partition"},
            "not with --zookeeper: there the key, or chance, chooses the partition",
        )


def prepare(options: argparse.Namespace, streams: Streams) -> None:
    """
    Open the file before the reactor runs: opening a named pipe waits for its writer, and Ctrl-C is to end that.

    @raise CommandError: it cannot be opened.
    """
    try:
        options.descriptor, options.name = openInput(options.file, streams.input)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"cannot read {options.file!r}: {getattr(error, 'strerror', None) or error}"
        ) from error


async def produce(reactor: Any, options: argparse.Namespace, streams: Streams) -> int:
    """
    Publish the lines of C{options.descriptor}.

    @return: the exit code.
    @raise PylogbrokerError: it did not work out; the text says how far it got.
    """
    publisher = _publisher(reactor, options)
    try:
        await _announced(reactor, options, streams, publisher.check())
        await _publish(reactor, options, streams, publisher)
    except CancelledError:
        streams.say(f"ended after {publisher.sentCount:,} messages")
        raise
    finally:
        await publisher.close()
    streams.say(
        f"sent {publisher.sentCount:,} messages ({formatBytes(publisher.sentSize)}) in {publisher.batchCount:,} requests to {publisher.destination}"
    )
    return 0


def _publisher(reactor: Any, options: argparse.Namespace) -> Publisher | ClusterPublisher:
    limits = {
        "codec": options.codec,
        "batchCountMax": options.batchCount,
        "payloadSizeMax": options.payloadSizeMax,
        "timeoutMs": options.timeoutMs,
    }
    if options.zookeeper is None:
        return Publisher(reactor, endpointOf(options), options.topic, options.partition, **limits)
    return ClusterPublisher(
        reactor,
        options.zookeeper,
        options.topic,
        options.separator,
        access=options.access,
        **limits,
    )


async def _announced(
    reactor: Any,
    options: argparse.Namespace,
    streams: Streams,
    waiting: Coroutine[Any, Any, None],
    progress: Progress | None = None,
) -> None:
    """Wait for the broker or the cluster; with C{progress}, until it has taken what was sent."""
    where = (
        f"the broker at {options.broker}"
        if options.zookeeper is None
        else f"the cluster at {options.zookeeper}"
        if progress
        else f"ZooKeeper at {options.zookeeper}"
    )

    def say(text: str) -> None:
        if progress is not None:
            progress.clear()
        streams.say(text)

    await announced(
        reactor,
        say,
        Deferred.fromCoroutine(waiting),
        f"{where} to take what was sent" if progress else where,
        options.timeoutMs,
    )


async def _publish(
    reactor: Any,
    options: argparse.Namespace,
    streams: Streams,
    publisher: Publisher | ClusterPublisher,
) -> None:
    size = inputSize(options.descriptor)
    progress = Progress(streams.errors, reactor.seconds, size)
    decoder = LineDecoder(options.payloadSizeMax)

    async def wait(sending: Coroutine[Any, Any, None]) -> None:
        await _announced(reactor, options, streams, sending, progress)

    reason = "it is longer"
    try:
        data = b"begin"
        while data and decoder.overlong is None:
            data = await _read(reactor, options)
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
            f"line {decoder.overlong:,} of {options.name} is too long for a message of {options.payloadSizeMax:,} bytes: {reason}; {before}"
        )


async def _read(reactor: Any, options: argparse.Namespace) -> bytes:
    try:
        return await read(reactor, options.descriptor)
    except OSError as error:
        raise CommandError(f"cannot read {options.name}: {error.strerror}") from error
