"""Tests for L{pylogbroker.cli.commands.produce}."""

from __future__ import annotations

import json
import os
import random

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.cli import CommandError, session
from pylogbroker.cli.main import CANCELLED
from tests.cli.commands import CommandCase, Outcome, reactor


class ProduceTests(CommandCase):
    """Lines become messages."""

    async def produce(self, *arguments: str, descriptor: int = -1) -> Outcome:
        return await self.perform(
            "produce",
            *arguments,
            "--broker",
            self.broker.endpoint,
            "--topic",
            "t",
            descriptor=descriptor,
        )

    async def test_file(self) -> None:
        """
        Each line of a file is a message, whatever stands in it; what was done is said on standard
        error.
        """
        await self.startBroker()
        path = self.write(b"one\n\n\xff\x00\r\nlast")
        result = await self.produce(path)
        self.assertEqual(await self.messages("t"), [b"one", b"", b"\xff\x00\r", b"last"])
        self.assertEqual(
            result,
            Outcome(
                0,
                b"",
                f"sent 4 messages (10 B) in 1 request to t-0 of {self.broker.endpoint}, which has"
                " taken them all\n",
            ),
        )

    async def test_json(self) -> None:
        """The outcome can be had as a JSON document."""
        await self.startBroker()
        result = await self.produce(self.write(b"one\ntwo\n"), "--json")
        self.assertEqual(
            json.loads(result.output),
            {"topic": "t", "messageCount": 2, "payloadSize": 6, "requestCount": 1},
        )

    async def test_batches(self) -> None:
        """Lines are sent in batches, compressed or not."""
        await self.startBroker()
        lines = [b"line %d" % index for index in range(1001)]
        path = self.write(b"\n".join(lines) + b"\n")
        for codec in ("none", "gzip", "snappy"):
            result = await self.produce(path, "--batch-size", "100", "--compression", codec)
            self.assertEqual(result.code, 0, result.errors)
            self.assertIn("in 11 requests", result.errors)
        self.assertEqual(await self.messages("t"), lines * 3)

    async def test_empty(self) -> None:
        """An empty file has no lines."""
        await self.startBroker()
        result = await self.produce(self.write(b""))
        self.assertEqual((result.code, result.errors.split("(")[0]), (0, "sent 0 messages "))

    async def test_partition(self) -> None:
        """
        The partition can be given; one that the broker has not is an error before anything is sent.
        """
        await self.startBroker(num_partitions="2")
        path = self.write(b"a\n")
        self.assertEqual((await self.produce(path, "--partition", "1")).code, 0)
        self.assertEqual(await self.messages("t", 1), [b"a"])
        self.assertEqual(
            await self.produce(path, "--partition", "2"),
            Outcome(1, b"", "pylogbroker: the broker has no partition 2 of topic t\n"),
        )
        self.assertEqual((await self.produce(path, "--partition", "-1")).code, 0)

    async def test_pipe(self) -> None:
        """Lines from a pipe are sent as they come, without waiting for a batch to be full."""
        await self.startBroker()
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        producing = Deferred.fromCoroutine(self.produce("-", descriptor=source))
        for index in range(3):
            os.write(sink, b"%d\npart of " % index)
            while len(await self.messages("t")) <= index:
                await deferLater(reactor, 0.005, lambda: None)
        os.close(sink)
        self.assertEqual((await producing).code, 0)
        self.assertEqual(await self.messages("t"), [b"0", b"part of 1", b"part of 2", b"part of "])

    async def test_overlong(self) -> None:
        """A line over the limit is an error with its number; the lines before it are sent."""
        await self.startBroker()
        path = self.write(b"1\n2\n" + b"x" * 101 + b"\n4\n")
        result = await self.produce(path, "--max-message-size", "100")
        reason = (
            f"pylogbroker: line 3 of {path} is too long for a message of 100 bytes: it is longer;"
            " the lines before it were sent\n"
        )
        self.assertEqual(result, Outcome(1, b"", reason))
        self.assertEqual(await self.messages("t"), [b"1", b"2"])

    async def test_overlongFirst(self) -> None:
        """When the first line is too long, nothing is sent, and that is said."""
        await self.startBroker()
        result = await self.produce(self.write(b"x" * 101), "--max-message-size", "100")
        self.assertEqual(result.code, 1)
        self.assertTrue(result.errors.endswith("it is longer; nothing was sent\n"), result.errors)

    async def test_overlongCompressed(self) -> None:
        """
        A line that is within the limit, and beyond it when it is compressed, is an error with its
        number, too.
        """
        await self.startBroker()
        line = random.Random(0).randbytes(1000).replace(b"\n", b"")[:900]
        result = await self.produce(
            self.write(b"1\n2\n" + line + b"\n4"),
            "--max-message-size",
            "900",
            "--compression",
            "gzip",
        )
        self.assertEqual(result.code, 1)
        self.assertIn("line 3 of ", result.errors)
        self.assertEqual(await self.messages("t"), [b"1", b"2"])

    async def test_lost(self) -> None:
        """
        When the connection is lost the exit code is 1, and it is said how much surely arrived.
        """
        await self.startBroker()
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, sink)
        producing = Deferred.fromCoroutine(
            self.produce("-", "--timeout-ms", "200", descriptor=source)
        )
        os.write(sink, b"1\n")
        while not await self.messages("t"):
            await deferLater(reactor, 0.005, lambda: None)
        await self.broker.broker.stop()
        os.write(sink, b"2\n")
        result = await producing
        self.assertEqual(result.code, 1)
        self.assertIn("lines sent, the broker has confirmed none", result.errors)

    async def test_announced(self) -> None:
        """
        While a broker or a ZooKeeper is not there, it is said what the command waits for, and how
        long.
        """
        self.patch(session, "NOTICE_SECONDS", 0.01)
        path = self.write(b"a")
        for option, what in (("--broker", "the broker"), ("--zookeeper", "ZooKeeper")):
            result = await self.perform(
                "produce", path, option, "127.0.0.1:1", "--topic", "t", "--timeout-ms", "300"
            )
            self.assertEqual(result.code, 1)
            self.assertEqual(
                result.errors.splitlines()[0],
                f"pylogbroker: waiting for {what} at 127.0.0.1:1; gives up after 0.3 s",
            )

    async def test_announcedTaking(self) -> None:
        """While the broker does not take what was sent, as with a full disk, that is said."""
        self.patch(session, "NOTICE_SECONDS", 0.01)
        address = self.startSilent()
        result = await self.perform(
            "produce", self.write(b"a"), "--broker", address, "--topic", "t", "--timeout-ms", "2000"
        )
        self.assertEqual(result.code, 1)
        # On a machine with much work, connecting is announced, too.
        self.assertIn(
            f"pylogbroker: waiting for the broker at {address} to take what was sent; "
            "gives up after 2 s",
            result.errors.splitlines(),
        )

    async def test_noBroker(self) -> None:
        """Without a broker the exit code is 1, and the text names it."""
        result = await self.perform(
            "produce",
            self.write(b"a"),
            "--broker",
            "127.0.0.1:1",
            "--topic",
            "t",
            "--timeout-ms",
            "100",
        )
        self.assertEqual(result.code, 1)
        self.assertIn("127.0.0.1:1", result.errors)

    async def test_badEndpoint(self) -> None:
        """What is no endpoint is an error that repeats it."""
        result = await self.perform(
            "produce", self.write(b"a"), "--broker", "nonsense", "--topic", "t"
        )
        self.assertEqual(result.code, 1)
        self.assertIn("nonsense", result.errors)

    async def test_unopened(self) -> None:
        """A file that cannot be opened is an error before there is a connection."""
        for path, reason in (
            ("/nonexistent", "No such file or directory"),
            ("/", "Is a directory"),
            ("a\0b", "embedded null byte"),
        ):
            try:
                await self.perform("produce", path, "--topic", "t")
            except CommandError as error:
                self.assertEqual(str(error), f"cannot read {path!r}: {reason}")
            else:
                self.fail("no error")

    async def test_unreadable(self) -> None:
        """Input that cannot be read is an error."""
        await self.startBroker()
        descriptor = os.open(os.devnull, os.O_WRONLY)
        self.addCleanup(os.close, descriptor)
        self.assertEqual(
            await self.produce("-", descriptor=descriptor),
            Outcome(1, b"", "pylogbroker: cannot read standard input: Bad file descriptor\n"),
        )

    async def test_ended(self) -> None:
        """Who ends it is told how many were sent."""
        await self.startBroker()
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, sink)
        producing = Deferred.fromCoroutine(self.produce("-", descriptor=source))
        os.write(sink, b"1\n2\n")
        while len(await self.messages("t")) < 2:
            await deferLater(reactor, 0.005, lambda: None)
        producing.cancel()
        self.assertEqual(await producing, Outcome(CANCELLED, b"", "ended after 2 messages\n"))
