"""Tests for L{pylogbroker.cli.commands.consume}."""

from __future__ import annotations

import glob
import io
import json
import os
import zlib
from contextlib import redirect_stderr

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.cli import session
from pylogbroker.cli.commands import consume
from pylogbroker.cli.main import CANCELLED
from pylogbroker.cli.streams import read
from pylogbroker.records.compression import GZIP
from pylogbroker.records.messageset import encodeMessage
from tests.cli.commands import CommandCase, Outcome, reactor


class ConsumeTests(CommandCase):
    """Messages become lines."""

    async def consume(self, *arguments: str, output: int = -1) -> Outcome:
        return await self.perform(
            "consume", "--broker", self.broker.endpoint, "--topic", "t", *arguments, output=output
        )

    async def test_fromBeginning(self) -> None:
        """
        All messages are printed, byte for byte, one a line; how far that was is said on standard
        error.
        """
        await self.startBroker()
        await self.publish("t", b"one", b"", b"\xff\x00\r")
        self.assertEqual(
            await self.consume("--from-beginning"),
            Outcome(0, b"one\n\n\xff\x00\r\n", "read 3 messages; the next offset is 36\n"),
        )

    async def test_offset(self) -> None:
        """Reading begins at an offset."""
        await self.startBroker()
        await self.publish("t", b"one", b"two", b"three")
        self.assertEqual(
            await self.consume("--offset", "13"),
            Outcome(0, b"two\nthree\n", "read 2 messages; the next offset is 41\n"),
        )
        self.assertEqual(
            await self.consume("--offset", "41"),
            Outcome(0, b"", "read 0 messages; the next offset is 41\n"),
        )

    async def test_maxMessages(self) -> None:
        """
        It stops after so many messages, or where there are no more; the next offset is where to go
        on.
        """
        await self.startBroker()
        await self.publish("t", b"one", b"two", b"three")
        self.assertEqual(
            await self.consume("--from-beginning", "--max-messages", "2"),
            Outcome(0, b"one\ntwo\n", "read 2 messages; the next offset is 26\n"),
        )
        self.assertEqual(
            (await self.consume("--from-beginning", "--max-messages", "5")).output,
            b"one\ntwo\nthree\n",
        )
        self.assertEqual(
            await self.consume("--from-beginning", "--max-messages", "0"), Outcome(0, b"", "")
        )

    async def test_formats(self) -> None:
        """Messages can be shown by their checksums, or as JSON."""
        await self.startBroker()
        await self.publish("t", b"one", b"two", codec=GZIP)
        result = await self.consume("--from-beginning", "--format", "checksum")
        self.assertEqual(
            result.output, b"checksum:%d\nchecksum:%d\n" % (zlib.crc32(b"one"), zlib.crc32(b"two"))
        )
        lines = (await self.consume("--from-beginning", "--json")).output.splitlines()
        self.assertEqual([json.loads(line)["payload"] for line in lines], ["one", "two"])

    async def test_many(self) -> None:
        """Messages of many fetches, compressed ones among them, come in order."""
        await self.startBroker()
        payloads = [b"%d" % index * 50 for index in range(5000)]
        for start in range(0, 5000, 1250):
            await self.publish(
                "t", *payloads[start : start + 1250], codec=GZIP * (start % 2500 > 0)
            )
        for size in ("65536", "10000000"):
            result = await self.consume("--from-beginning", "--fetch-size", size)
            self.assertEqual(result.output.splitlines(), payloads)
        self.assertEqual(
            (await self.consume("--from-beginning", "--max-messages", "2500")).output.splitlines(),
            payloads[:2500],
        )

    async def test_insideWrapper(self) -> None:
        """Stopping inside a compressed message leaves the next offset where it begins."""
        await self.startBroker()
        await self.publish("t", b"one")
        await self.publish("t", b"two", b"three", codec=GZIP)
        self.assertEqual(
            await self.consume("--from-beginning", "--max-messages", "2"),
            Outcome(0, b"one\ntwo\n", "read 2 messages; the next offset is 13\n"),
        )

    async def test_emptyWrapper(self) -> None:
        """A compressed message with nothing inside is stepped over."""
        await self.startBroker()
        empty = encodeMessage(b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0", codec=GZIP)
        self.plant(empty + encodeMessage(b"one"))
        await self.restart()
        self.assertEqual(
            (await self.consume("--from-beginning", "--fetch-size", str(len(empty)))).output,
            b"one\n",
        )

    def plant(self, data: bytes) -> None:
        """Write the first segment of a topic t, as if the broker had."""
        folder = os.path.join(self.broker.directory, "t-0")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "0" * 20 + ".kafka"), "wb") as file:
            file.write(data)

    async def restart(self) -> None:
        """Stop the broker, and start another in its directory."""
        planted = [
            (path, open(path, "rb").read())  # noqa: SIM115
            for path in glob.glob(os.path.join(self.broker.directory, "*", "*.kafka"))
        ]
        await self.broker.broker.stop()
        for path, data in planted:
            with open(path, "wb") as file:
                file.write(data)
        from pylogbroker.testing.localbroker import LocalBroker

        self.broker = LocalBroker(reactor, directory=self.broker.directory)
        self.addCleanup(self.broker.stop)
        await self.broker.start()

    async def test_unknownTopic(self) -> None:
        """A topic that nobody published to is an error, and is not brought into being."""
        await self.startBroker()
        for start in (("--from-beginning",), ("--offset", "5")):
            self.assertEqual(
                await self.consume(*start),
                Outcome(
                    1,
                    b"",
                    "pylogbroker: the broker has no topic t: nothing was ever published to it\n",
                ),
            )
        self.assertFalse(os.path.exists(os.path.join(self.broker.directory, "t-0")))

    async def test_unknownTopicFollowed(self) -> None:
        """Who follows a topic that is not there yet is told so, and sees its first message."""
        await self.startBroker()
        self.patch(consume, "POLL_SECONDS", 0.01)
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, sink)
        errors = io.StringIO()
        following = Deferred.fromCoroutine(
            self.perform(
                "consume",
                "--broker",
                self.broker.endpoint,
                "--topic",
                "t",
                "--follow",
                output=sink,
                errors=errors,
            )
        )
        while "waiting for the first message" not in errors.getvalue():
            await deferLater(reactor, 0.005)
        await self.publish("t", b"first")
        self.assertEqual(await read(reactor, source), b"first\n")
        following.cancel()
        self.assertEqual((await following).code, CANCELLED)

    async def test_consumerTimeout(self) -> None:
        """Following ends when nothing has come for the time that was given."""
        await self.startBroker()
        self.patch(consume, "POLL_SECONDS", 0.01)
        await self.publish("t", b"old")
        result = await self.consume("--offset", "0", "--follow", "--consumer-timeout-ms", "50")
        self.assertEqual((result.code, result.output), (0, b"old\n"))

    async def test_silentBroker(self) -> None:
        """When the broker is gone, that is said before the command gives up, and when it will."""
        await self.startBroker()
        self.patch(session, "NOTICE_SECONDS", 0.01)
        self.patch(consume, "POLL_SECONDS", 0.01)
        await self.publish("t", b"old")
        endpoint = self.broker.endpoint
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, sink)
        following = Deferred.fromCoroutine(
            self.consume("--offset", "0", "--follow", "--timeout-ms", "400", output=sink)
        )
        self.assertEqual(await read(reactor, source), b"old\n")
        await self.broker.broker.stop()
        result = await following
        self.assertEqual(result.code, 1)
        self.assertIn(
            f"pylogbroker: waiting for the broker at {endpoint}; gives up after 0.4 s\n",
            result.errors,
        )

    async def test_follow(self) -> None:
        """Following waits at the end for new messages, until it is ended."""
        await self.startBroker()
        self.patch(consume, "POLL_SECONDS", 0.01)
        await self.publish("t", b"old")
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, sink)
        following = Deferred.fromCoroutine(self.consume("--offset", "0", "--follow", output=sink))
        self.assertEqual(await read(reactor, source), b"old\n")
        for payload in (b"new", b"newer"):
            await self.publish("t", payload)
            self.assertEqual(await read(reactor, source), payload + b"\n")
        following.cancel()
        self.assertEqual(
            await following, Outcome(CANCELLED, b"", "read 3 messages; the next offset is 41\n")
        )

    async def test_followFromTheEnd(self) -> None:
        """Without a start, following begins at the end."""
        await self.startBroker()
        self.patch(consume, "POLL_SECONDS", 0.01)
        await self.publish("t", b"old")
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, sink)
        following = Deferred.fromCoroutine(
            self.consume("--follow", "--max-messages", "1", output=sink)
        )
        # What counts the fetches is the broker itself: after one, the end is known.
        counters = self.broker.broker.service.counters.requests
        while not counters.fetchCount > 2:
            await self.messages("other")
        await self.publish("t", b"new")
        self.assertEqual((await following).code, 0)
        self.assertEqual(await read(reactor, source), b"new\n")

    async def test_ended(self) -> None:
        """
        Ended while nobody takes its output, it stops at once, and has not counted what nobody got.
        """
        await self.startBroker()
        await self.publish("t", *[b"x" * 1000] * 500)
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, sink)
        reading = Deferred.fromCoroutine(self.consume("--from-beginning", output=sink))
        await read(reactor, source)
        reading.cancel()
        self.assertEqual(
            await reading, Outcome(CANCELLED, b"", "read 0 messages; the next offset is 0\n")
        )

    async def test_brokenPipe(self) -> None:
        """When nobody reads the output any more, that is a quiet end."""
        await self.startBroker()
        await self.publish("t", b"one")
        source, sink = os.pipe()
        os.close(source)
        self.addCleanup(os.close, sink)
        self.assertEqual(
            await self.consume("--from-beginning", output=sink),
            Outcome(0, b"", "read 0 messages; the next offset is 0\n"),
        )

    async def test_outOfRange(self) -> None:
        """An offset that is not there is an error that says which are."""
        await self.startBroker()
        await self.publish("t", b"one")
        self.assertEqual(
            await self.consume("--offset", "14"),
            Outcome(1, b"", "pylogbroker: there is nothing at offset 14; t-0 holds 0 to 13\n"),
        )

    async def test_partition(self) -> None:
        """A partition that the broker has not is an error."""
        await self.startBroker()
        result = await self.consume("--from-beginning", "--partition", "7")
        self.assertEqual(
            result, Outcome(1, b"", "pylogbroker: the broker has no partition 7 of topic t\n")
        )

    async def test_fetchSize(self) -> None:
        """
        A message that is larger than the fetch size is an error that says what to do; those before
        it are printed.
        """
        await self.startBroker()
        await self.publish("t", b"one", b"x" * 100)
        result = await self.consume("--from-beginning", "--fetch-size", "50")
        self.assertEqual((result.code, result.output), (1, b"one\n"))
        self.assertIn(
            "the message at offset 13 is larger than 50 bytes (then give a larger --fetch-size)",
            result.errors,
        )

    async def test_corrupt(self) -> None:
        """
        A message that is damaged is an error that names its offset; those before it are printed.
        """
        await self.startBroker()
        await self.publish("t", b"one", b"two")
        [path] = glob.glob(os.path.join(self.broker.directory, "t-0", "*.kafka"))
        with open(path, "r+b") as file:
            file.seek(25)
            file.write(b"?")
        result = await self.consume("--from-beginning")
        self.assertEqual((result.code, result.output), (1, b"one\n"))
        self.assertIn("pylogbroker: the message at offset 13 is not valid: checksum", result.errors)

    async def test_nothingToRead(self) -> None:
        """Neither a start nor following would print nothing, and is a mistake."""
        errors = io.StringIO()
        with redirect_stderr(errors):
            error = await self.refused(self.perform("consume", "--topic", "t"), SystemExit)
        self.assertEqual(error.code, 2)
        self.assertIn("--from-beginning", errors.getvalue())
