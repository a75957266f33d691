"""
C{demo} runs a broker in this process, publishes a real log file to it in batches, reads it back,
and compares it byte for byte.

Client and broker share a process and a reactor, and talk over a loopback socket. The file is read
once, and the answer is compared with what was read: a log file that grows must not look like our
error. Of a very large file it takes the whole lines in the first C{SIZE_MAX} bytes.
"""

from __future__ import annotations

import os
import shlex
import stat
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from twisted.internet.task import deferLater

from pylogbroker import __version__
from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import (
    BATCHING,
    DEFAULT_BROKER,
    Command,
    changesOption,
    option,
    port,
)
from pylogbroker.cli.commands.dev import program, shortest, temporaryDirectory
from pylogbroker.cli.output import formatBytes
from pylogbroker.cli.publisher import BrokerPublisher, PublisherLimits
from pylogbroker.cli.streams import LineDecoder, Streams, readable
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.config.brokersettings import BrokerSettings, samplePath
from pylogbroker.config.properties import Properties, readProperties
from pylogbroker.errors import MessageTooLargeError, PylogbrokerError
from pylogbroker.net.deferreds import closeAll, closing
from pylogbroker.programs.embedded import EmbeddedBroker
from pylogbroker.types import formatCount

TOPIC = "demo"
SIZE_MAX = 64 << 20
TIMEOUT_MS = 30_000
FLUSH_MS_MAX = 30_000
"""How long a flush may take, beyond the time until it is due."""

POLL_SECONDS = 0.02
FETCH_SIZE = 4 << 20

LOG_DIRECTORY = "/var/log"
LOG_NAMES = (
    "dpkg.log",
    "apt/history.log",
    "apt/term.log",
    "alternatives.log",
    "bootstrap.log",
    "syslog",
    "messages",
    "kern.log",
    "dnf.log",
    "pacman.log",
)


async def demo(options: Namespace, streams: Streams) -> int:
    """Run the demo."""
    config = options.config or str(samplePath())
    lasting = readProperties(config, streams.warn).withOverrides(options.changes)
    path = options.file or findLog()
    data, isWhole = readFile(path)
    with temporaryDirectory("demo") as directory:
        # Port and directory are the demo's own: it must not meet a running broker or leave files.
        properties = lasting.withOverrides(
            [
                f"port={options.port}",
                "listeners=",
                "listen.interface=127.0.0.1",
                f"log.dir={directory}",
                "enable.zookeeper=false",
            ]
        )
        broker = EmbeddedBroker(streams.reactor, properties)
        await broker.start()
        try:
            show = _Demo(broker, options, streams)
            await show.say(f"pylogbroker {__version__}\n")
            await show.row(
                "broker", f"{broker.endpoint}, configured by {config}, data in {directory}"
            )
            part = "" if isWhole else f", the first of more than {formatBytes(SIZE_MAX)}"
            await show.row("file", f"{path}: {formatBytes(len(data))}{part}")
            count = await show.run(path, data)
        finally:
            await closeAll(broker.stop())
    await show.row("broker", "stopped, data removed\n")
    shown = count if isWhole else None
    lines = nextSteps(path, shown, data.endswith(b"\n"), config, lasting, options.changes)
    await show.say(
        "Go on from here, with a broker that stays:\n\n" + "".join(f"  {line}\n" for line in lines)
    )
    return 0


@dataclass
class _Demo:
    """The steps, each of which prints a row."""

    broker: EmbeddedBroker
    options: Namespace
    streams: Streams

    async def say(self, text: str) -> None:
        """Print a line on standard output."""
        await self.streams.write(f"{text}\n".encode("utf-8", "surrogateescape"))

    async def row(self, name: str, text: str) -> None:
        """Print a step and its result."""
        await self.say(f"{name:<11}{text}")

    async def run(self, path: str, data: bytes) -> int:
        """
        Publish, read back, compare.

        @return: the number of messages.
        """
        messages = await self._publish(path, data)
        found = await self._readBack(len(messages))
        back = b"\n".join(found) + (b"\n" if data.endswith(b"\n") else b"")
        if back != data:
            pairs = enumerate(zip_longest(back, data))
            position = next(index for index, (one, other) in pairs if one != other)
            raise CommandError(f"what came back differs from {path} at byte {position}")
        await self.row(
            "compared", f"{len(back):,} bytes: what came back is the file, byte for byte"
        )
        return len(messages)

    async def _publish(self, path: str, data: bytes) -> list[bytes]:
        sizeMax = self.broker.settings.maxMessageSize
        decoder = LineDecoder(sizeMax)
        messages = decoder.feed(data) + decoder.finish()
        overlong, reason = decoder.overlong, "it is longer"
        options, reactor = self.options, self.streams.reactor
        limits = PublisherLimits(options.compression, options.batchSize, sizeMax, TIMEOUT_MS)
        publisher = BrokerPublisher(
            reactor, self.broker.endpoint, TOPIC, 0, limits, what="messages"
        )
        async with closing(publisher):
            try:
                if overlong is None:
                    begin = reactor.seconds()
                    await publisher.add(messages)
                    await publisher.flush()
                    await publisher.confirm()
                    await self.row(
                        "published",
                        f"{rates(len(messages), publisher.sentSize, reactor.seconds() - begin)}, "
                        f"in {formatCount(publisher.batchCount, 'request')}",
                    )
            except MessageTooLargeError as error:
                overlong, reason = publisher.sentCount + 1, error.reason
            except PylogbrokerError as error:
                raise publisher.failed(error) from error
        if overlong is not None:
            raise CommandError(
                f"line {overlong:,} of {path} is too long for a message of {sizeMax:,} bytes: "
                f"{reason}; try another file"
            )
        return messages

    async def _readBack(self, count: int) -> list[bytes]:
        """Consumers see only flushed messages; the wait for the flush does not count as reading."""
        reactor, settings = self.streams.reactor, self.broker.settings
        waitedMax = (
            settings.logDefaultFlushIntervalMs
            + settings.logDefaultFlushSchedulerIntervalMs
            + FLUSH_MS_MAX
        ) / 1000
        found: list[bytes] = []
        offset = 0
        seconds = waited = 0.0
        consumer = SimpleConsumer(reactor, self.broker.endpoint, timeoutMs=TIMEOUT_MS)
        async with closing(consumer):
            while len(found) < count:
                begin, before = reactor.seconds(), len(found)
                fetched = await consumer.fetch(TOPIC, 0, offset, FETCH_SIZE)
                for payload, offset in fetched.payloads():
                    found.append(payload)
                if len(found) > before:
                    seconds += reactor.seconds() - begin
                    continue
                if waited > waitedMax:
                    raise CommandError(
                        f"after {waited:.0f} s only {before:,} of {count:,} messages are visible"
                    )
                await deferLater(reactor, POLL_SECONDS)
                waited += reactor.seconds() - begin
        size = sum(map(len, found))
        await self.row(
            "read back",
            f"{rates(len(found), size, seconds)}, after {waited:.2f} s of waiting for the flush",
        )
        return found


def rates(count: int, size: int, seconds: float) -> str:
    """Messages, seconds and rates, for people."""
    seconds = max(seconds, 1e-6)
    each = f"{count / seconds:,.0f} messages/s, {formatBytes(size / seconds)}/s"
    return f"{formatCount(count, 'message')} in {seconds:.3f} s: {each}"


def findLog(directory: str = LOG_DIRECTORY) -> str:
    """
    The largest readable log file of this machine: a well-known one, or else any C{.log} file.

    @raise CommandError: there is none.
    """
    for paths in ([os.path.join(directory, name) for name in LOG_NAMES], _logsUnder(directory)):
        found = [(size, path) for path in paths if (size := _readableSize(path)) > 0]
        if found:
            return max(found)[1]
    raise CommandError(
        f"no log file was found under {directory} that can be read: give one as an argument"
    )


def _logsUnder(directory: str) -> Iterator[str]:
    for folder, _folders, names in os.walk(directory):
        yield from (os.path.join(folder, name) for name in names if name.endswith(".log"))


def _readableSize(path: str) -> int:
    try:
        status = os.stat(path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK) else 0


def readFile(path: str, sizeMax: int = SIZE_MAX) -> tuple[bytes, bool]:
    """
    A file's bytes, or the whole lines in the first C{sizeMax} bytes.

    @return: (the bytes; whether they are the whole file).
    @raise CommandError: the file cannot be read, is not regular, or is empty.
    """
    with readable(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CommandError(f"{path} is not a regular file")
            data = file.read(sizeMax + 1)
    if not data:
        raise CommandError(f"{path} is empty: give another file")
    if len(data) <= sizeMax:
        return data, True
    return data[: data.rfind(b"\n", 0, sizeMax) + 1] or data[:sizeMax], False


def nextSteps(
    path: str,
    count: int | None,
    isEnded: bool,
    config: str,
    properties: Properties,
    changes: Iterable[str] = (),
) -> list[str]:
    """
    Commands to type next.

    @param count: the messages in the file, if known: C{consume} waits for them, since they are
        visible only after the flush.
    @param isEnded: whether the file ends with a line feed; only then C{consume} prints the file.
    @param properties: of the broker that the first command starts.
    @param changes: C{--set} arguments.
    """
    settings = BrokerSettings.fromProperties(properties, lambda sentence: None)
    host = settings.listenInterface or "127.0.0.1"
    address = f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}"
    option = "" if address == DEFAULT_BROKER else f" --broker {address}"
    command, file = program("pylogbroker"), shlex.quote(path)
    broker = f"{program('twistd')} -n pylogbroker --config {shlex.quote(shortest(config))}"
    awaited = "" if count is None else f" --follow --max-messages {count}"
    compared = f"cmp - {file} && echo identical" if isEnded else "tail"
    sets = "".join(f" --set {shlex.quote(change)}" for change in changes)
    segment = os.path.join(settings.logDir, f"{TOPIC}-0", "0" * 20 + ".kafka")
    return [
        f"{broker}{sets}    # in another terminal",
        f"{command} produce {file}{option} --topic {TOPIC}",
        f"{command} consume{option} --topic {TOPIC} --from-beginning{awaited} | {compared}",
        f"{command} offset list{option} --topic {TOPIC}",
        f"{command} dump --no-print {shlex.quote(segment)} | tail -n 3",
    ]


COMMANDS = (
    Command(
        "demo",
        demo,
        (
            option(
                "file FILE",
                "the file to publish; by default, a log file of this machine",
                nargs="?",
            ),
            option(
                "--config FILE",
                "the broker's property file; by default, the one that comes with pylogbroker "
                "(etc/broker.properties)",
            ),
            changesOption("a property that overrides the file's"),
            option("--port N", "the loopback port to listen on; by default, a free one", port, 0),
            *BATCHING,
        ),
        """\
examples:
  pylogbroker demo
  pylogbroker demo /var/log/syslog --compression gzip --batch-size 1000
""",
    ),
)
