"""
Publishes log files, line by line, as Avro records with a schema from the registry: Apache's error
logs to the topic C{apache}, sshd's to C{openssh}.

    python publishlogs.py --zookeeper localhost:2181 --registry http://localhost:8081 --apache
    error.log --openssh auth.log --year 2026

Lines that are not log lines are counted, and the first five are shown. If a line could not be
published, the exit status is 1.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from typing import Any

from loglines import SCHEMA, ApacheLines, Record, SshdLines, records
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

from pylogbroker.client.registryclient import RegistryClient
from pylogbroker.errors import PylogbrokerError
from pylogbroker.producer.producer import Producer
from pylogbroker.schemas.avro import AvroEncoder

SHOWN_COUNT_MAX = 5


class Problems:
    """
    Problems of one kind: counts them, and prints the first five.

    @ivar count: the number of problems.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.count = 0

    def __call__(self, text: str) -> None:
        self.count += 1
        if self.count <= SHOWN_COUNT_MAX:
            print(f"{self._what}: {text[:200]}", file=sys.stderr)


class LogPublisher:
    """
    Publishes files.

    @ivar failed: lines that could not be published.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.failed = Problems("not published")

    async def publish(self, topic: str, path: str, read: Callable[[str], Record | None]) -> None:
        """Publish one file. The lines of one client keep their order."""
        skipped, count = Problems("not a log line"), 0
        with open(path, "rb") as file:
            for record in records(file, read, skipped):
                await self._producer.whenReady()
                sent = self._producer.send(topic, record, record["client"] or "")
                sent.addErrback(lambda failure: self.failed(failure.getErrorMessage()))
                count += 1
        print(f"{path}: {count} records for {topic}, {skipped.count} lines skipped", flush=True)


async def publishAll(reactor: Any, options: Namespace) -> int:
    """Publish all files, and return how many lines could not be published."""
    registry = RegistryClient(reactor, options.registry)
    text = json.dumps(SCHEMA)
    schemaId = 0
    for topic in ("apache", "openssh"):  # one schema, so both get the same id
        schemaId = await registry.register(f"{topic}-value", text)
    settings = {
        "zk.connect": options.zookeeper,
        "producer.type": "async",
        "compression.codec": "1",
        "confirm": "true",
    }
    producer = Producer(reactor, settings, encoder=AvroEncoder(schemaId, text))
    await producer.start()
    publisher = LogPublisher(producer)
    for path in options.apache:
        await publisher.publish("apache", path, ApacheLines().read)
    for path in options.openssh:
        await publisher.publish("openssh", path, SshdLines(options.year).read)
    await producer.close()
    return publisher.failed.count


async def main(reactor: Any, options: Namespace) -> None:
    try:
        failedCount = await publishAll(reactor, options)
    except PylogbrokerError as error:
        raise SystemExit(f"publishlogs.py: {error}") from None
    if failedCount:
        raise SystemExit(f"publishlogs.py: {failedCount} lines were not published")


def readableFile(path: str) -> str:
    """The path of a file, checked before anything is published."""
    try:
        open(path, "rb").close()
    except OSError as error:
        raise ArgumentTypeError(
            f"{path}: {error.strerror}; samplelogs.py writes sample files"
        ) from None
    return path


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--zookeeper",
        required=True,
        metavar="HOST:PORT[,…][/CHROOT]",
        help="where the brokers are registered",
    )
    parser.add_argument(
        "--registry",
        required=True,
        metavar="URL",
        help="of the schema registry, for instance http://localhost:8081",
    )
    parser.add_argument(
        "--apache",
        nargs="+",
        default=[],
        type=readableFile,
        metavar="FILE",
        help="error logs of Apache",
    )
    parser.add_argument(
        "--openssh",
        nargs="+",
        default=[],
        type=readableFile,
        metavar="FILE",
        help="logs of sshd, as syslog writes them",
    )
    parser.add_argument("--year", type=int, help="of sshd's lines, which do not name it")
    options = parser.parse_args()
    if options.openssh and options.year is None:
        parser.error("--openssh needs --year")
    react(lambda reactor, options: ensureDeferred(main(reactor, options)), [options])
