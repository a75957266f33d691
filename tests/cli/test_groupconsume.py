"""
Tests for L{pylogbroker.cli.commands.consume}, with a real ZooKeeper and brokers that are registered
in it.
"""

from __future__ import annotations

import io
import os
import signal
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.cli import session
from pylogbroker.cli.commands import consume
from pylogbroker.cli.main import CANCELLED
from pylogbroker.cli.streams import read
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.errors import NoNodeException
from pylogbroker.records.compression import GZIP, compress
from pylogbroker.records.messageset import encodeMessage
from pylogbroker.types import LATEST
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome, Process, reactor

PAYLOADS = [b"%d" % number for number in range(40)]


class GroupConsumeTests(ClusterCase):
    """Messages of a whole cluster become lines."""

    async def committed(self, group: str, topic: str = "t") -> int:
        """Of all partitions together."""
        path = f"/consumers/{group}/offsets/{topic}"
        return sum(
            [int((await self.admin.get(f"{path}/{name}"))[0]) for name in await self.children(path)]
        )

    def size(self, payloads: list[bytes]) -> int:
        """Bytes in the logs."""
        return sum(10 + len(payload) for payload in payloads)

    def pipe(self) -> tuple[int, int]:
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, sink)
        return source, sink

    async def test_fromBeginning(self) -> None:
        """
        All messages of all brokers are printed, and then it ends; a group of its own leaves nothing
        behind in ZooKeeper.
        """
        await self.startBrokers()
        await self.spread("t", *PAYLOADS)
        result = await self.consumed("--topic", "t", "--from-beginning")
        self.assertEqual(sorted(result.output.split()), sorted(PAYLOADS))
        self.assertEqual(result.code, 0)
        self.assertRegex(result.errors, r"^read 40 messages as console-consumer-\d+_\S+\n$")
        self.assertEqual(await self.children("/consumers"), [])

    async def test_group(self) -> None:
        """
        A group goes on where it was, also after a number of messages; at the end its members and
        owners are gone, and the offsets are there.
        """
        await self.startBrokers()
        await self.spread("t", *PAYLOADS)
        first = await self.consumed(
            "--topic", "t", "--group", "g", "--from-beginning", "--max-messages", "15"
        )
        self.assertEqual((first.code, len(first.output.split())), (0, 15))
        self.assertEqual(await self.committed("g"), self.size(first.output.split()))
        second = await self.consumed("--topic", "t", "--group", "g", "--from-beginning")
        self.assertEqual(sorted((first.output + second.output).split()), sorted(PAYLOADS))
        self.assertEqual(
            (await self.consumed("--topic", "t", "--group", "g", "--from-beginning")).output, b""
        )
        self.assertEqual(
            (await self.children("/consumers/g/ids"), await self.children("/consumers/g/owners/t")),
            ([], []),
        )
        self.assertEqual(await self.committed("g"), self.size(PAYLOADS))

    async def test_emptyAtTheEnd(self) -> None:
        """
        A log whose last entry is a wrapper without messages comes to its end, and is committed up
        to there.
        """
        await self.startBrokers(
            1, log_default_flush_interval_ms="50", log_default_flush_scheduler_interval_ms="50"
        )
        await self.spread("t", b"one")
        producer = SyncProducer(reactor, self.brokers[0].endpoint)
        empty = encodeMessage(compress(GZIP, b""), codec=GZIP)
        await producer.send("t", 0, empty)
        await producer.close()
        reader = SimpleConsumer(reactor, self.brokers[0].endpoint)

        async def isVisible() -> bool:
            return await reader.getOffsetsBefore("t", 0, LATEST, 1) == [
                self.size([b"one"]) + len(empty)
            ]

        await self.until(isVisible)
        await reader.close()
        result = await self.consumed(
            "--topic", "t", "--from-beginning", "--group", "g", "--timeout-ms", "1500"
        )
        self.assertEqual((result.code, result.output), (0, b"one\n"))
        self.assertEqual(await self.committed("g"), self.size([b"one"]) + len(empty))

    async def test_filters(self) -> None:
        """A whitelist takes the topics whose whole names match, a blacklist the others."""
        await self.startBrokers(1)
        for topic in ("log.a", "log.b", "xlog.a"):
            await self.spread(topic, topic.encode())
        for arguments, wanted in (
            (("--whitelist", "log.*"), [b"log.a", b"log.b"]),
            (("--blacklist", "log[.]a,xlog[.]a"), [b"log.b"]),
        ):
            result = await self.consumed(*arguments, "--from-beginning")
            self.assertEqual((result.code, sorted(result.output.split())), (0, wanted))

    async def pair(self) -> tuple[Process, Any, Process, Any]:
        """
        Two processes in a group that have half of four partitions each; in two of these is a
        message C{first}.
        """
        await self.startBrokers()
        await self.establish("t")
        arguments = (
            "consume",
            "--zookeeper",
            self.servers,
            "--topic",
            "t",
            "--group",
            "g",
            "--from-beginning",
            "--follow",
        )
        first, firstProcess = self.spawn(*arguments)
        await first.said(b"first\n")
        second, secondProcess = self.spawn(*arguments)

        async def isShared() -> bool:
            names = await self.children("/consumers/g/owners/t")
            try:
                owners = [
                    (await self.admin.get(f"/consumers/g/owners/t/{name}"))[0] for name in names
                ]
            except NoNodeException:
                return False
            return len(owners) == 4 and len(set(owners)) == 2

        await self.until(isShared)
        return first, firstProcess, second, secondProcess

    async def test_share(self) -> None:
        """
        Two processes in a group share the messages. Ctrl-C ends one in order: what it printed is
        committed, its partitions are the other's at once.
        """
        first, _firstProcess, second, secondProcess = await self.pair()
        await self.spread("t", *PAYLOADS)

        async def isPrinted() -> bool:
            return len((first.output + second.output).split()) == 42

        await self.until(isPrinted)
        self.assertEqual(
            sorted((first.output + second.output).split()), sorted([b"first", b"first", *PAYLOADS])
        )
        secondProcess.signalProcess(signal.SIGINT)
        ended = await second.ended
        self.assertEqual(ended.code, 0)
        self.assertRegex(ended.errors, r"^read \d+ messages as g_\S+\n$")
        more = [b"more %d" % number for number in range(20)]
        await self.spread("t", *more)
        for payload in more:
            await first.said(payload + b"\n")
        self.assertEqual(len(await self.children("/consumers/g/ids")), 1)
        self.assertEqual(len(first.output.splitlines()) + len(ended.output.splitlines()), 62)

    async def test_killed(self) -> None:
        """
        A process that is killed leaves its partitions to the other when its session is over: each
        message is printed at least once, in order.
        """
        first, _firstProcess, second, secondProcess = await self.pair()
        await self.spread("t", *PAYLOADS)
        await second.said(b"\n")
        secondProcess.signalProcess(signal.SIGKILL)
        ended = await second.ended
        more = [b"more %d" % number for number in range(20)]
        await self.spread("t", *more)
        for payload in more:
            await first.said(payload + b"\n")
        printed = [*ended.output.splitlines(), *first.output.splitlines()]
        self.assertEqual(set(printed), {b"first", *PAYLOADS, *more})
        for payloads in (await self.stored("t")).values():
            found = [
                payload
                for payload in first.output.splitlines()
                if payload in payloads and payload in more
            ]
            self.assertEqual(found, [payload for payload in payloads if payload in more])

    async def following(self) -> tuple[Deferred[Any], int]:
        """
        A member of the group that follows, has printed a first message, and whose output is a pipe;
        and where to read that.
        """
        await self.startBrokers(1)
        await self.establish("t")
        source, sink = self.pipe()
        reading = Deferred.fromCoroutine(
            self.consumed(
                "--topic", "t", "--group", "g", "--from-beginning", "--follow", output=sink
            )
        )
        self.assertEqual(await read(reactor, source), b"first\n")
        return reading, source

    async def test_ended(self) -> None:
        """
        Ended while nobody takes its output, it has committed what was printed before, and not what
        nobody got.
        """
        reading, source = await self.following()
        await self.publish("t", *[b"%d" % number + b"x" * 10_000 for number in range(30)])
        await read(reactor, source)
        reading.cancel()
        result = await reading
        self.assertEqual(result.code, CANCELLED)
        self.assertRegex(result.errors, "^read 1 message as g_")
        self.assertEqual(await self.committed("g"), self.size([b"first"]))

    async def test_committedWhilePrinting(self) -> None:
        """
        A commit that comes while messages are taken and nobody takes the output does not count
        them: a member that is killed then loses nothing.
        """
        made: list[ConsumerConnector] = []

        class Known(ConsumerConnector):
            def __init__(self, *arguments: Any, **keywords: Any) -> None:
                super().__init__(*arguments, **keywords)
                made.append(self)

        self.patch(session, "ConsumerConnector", Known)
        reading, source = await self.following()
        payloads = [b"%d" % number + b"x" * 10_000 for number in range(30)]
        await self.publish("t", *payloads)
        got = await read(reactor, source)
        await made[0].commitOffsets()
        self.assertEqual(await self.committed("g"), self.size([b"first"]))
        while len(got) < sum(map(len, payloads)) + len(payloads):
            got += await read(reactor, source)

        async def isCommitted() -> bool:
            await made[0].commitOffsets()
            return await self.committed("g") == self.size([b"first", *payloads])

        await self.until(isCommitted)
        reading.cancel()
        self.assertRegex((await reading).errors, "^read 31 messages as g_")

    async def test_brokenPipe(self) -> None:
        """
        When nobody reads the output any more, that is a quiet end, and what was not printed is not
        committed.
        """
        await self.startBrokers(1)
        await self.spread("t", b"one")
        source, sink = os.pipe()
        os.close(source)
        self.addCleanup(os.close, sink)
        result = await self.consumed(
            "--topic", "t", "--group", "g", "--from-beginning", output=sink
        )
        self.assertEqual(result[:2], (0, b""))
        self.assertEqual(await self.committed("g"), 0)

    async def corrupt(self) -> None:
        """
        In partition 0 a message whose checksum is wrong, behind a good one; in partition 1 a good
        one.
        """
        await self.startBrokers(1)
        [self.broker] = self.brokers
        producer = SyncProducer(reactor, self.broker.endpoint)
        await producer.send("t", 0, [b"good", b"evil"])
        await producer.send("t", 1, [b"other"])
        await producer.confirm("t", 1)
        await producer.close()

        async def isRegistered() -> bool:
            return bool(await self.children("/brokers/topics/t"))

        await self.until(isRegistered)
        with open(os.path.join(self.broker.directory, "t-0", "0" * 20 + ".kafka"), "r+b") as file:
            file.seek(2 * 14 - 1)
            file.write(b"?")

    async def test_corrupt(self) -> None:
        """
        A damaged message is an error that names partition and offset, once the good ones before it
        are printed.
        """
        await self.corrupt()
        result = await self.consumed("--topic", "t", "--from-beginning", "--group", "g")
        self.assertEqual(result.code, 1)
        self.assertIn(b"good\n", result.output)
        self.assertRegex(result.errors, r"pylogbroker: t.*0-0 at offset 14: checksum")

    async def test_corruptSkipped(self) -> None:
        """
        Told to skip errors, it names a damaged message, reads the other partitions, and ends with
        1.
        """
        await self.corrupt()
        result = await self.consumed(
            "--topic", "t", "--from-beginning", "--group", "g", "--skip-message-on-error"
        )
        self.assertEqual(result.code, 1)
        self.assertEqual(sorted(result.output.splitlines()), [b"good", b"other"])
        self.assertRegex(result.errors, r"pylogbroker: t.*0-0 at offset 14: checksum")

    async def test_consumerTimeout(self) -> None:
        """A member that follows ends when nothing has come for the time that was given."""
        await self.startBrokers(1)
        await self.establish("t")
        arguments = ("--autocommit-interval-ms", "50", "--consumer-timeout-ms", "300")
        result = await self.consumed("--topic", "t", "--from-beginning", "--follow", *arguments)
        self.assertEqual((result.code, result.output), (0, b"first\n"))

    async def test_corruptFollowed(self) -> None:
        """Who follows is told of a damaged message, and goes on with the other partitions."""
        await self.corrupt()
        errors = io.StringIO()
        arguments = (
            "--topic",
            "t",
            "--from-beginning",
            "--group",
            "g",
            "--follow",
            "--max-messages",
            "3",
        )
        reading = Deferred.fromCoroutine(
            self.perform("consume", "--zookeeper", self.servers, *arguments, errors=errors)
        )

        async def isTold() -> bool:
            return "checksum" in errors.getvalue()

        await self.until(isTold)
        producer = SyncProducer(reactor, self.brokers[0].endpoint)
        await producer.send("t", 1, [b"later"])
        await producer.close()
        result = await reading
        self.assertEqual(
            (result.code, sorted(result.output.split())), (1, [b"good", b"later", b"other"])
        )

    async def test_blocked(self) -> None:
        """
        A partition that another owns for good is an error in the end, and not silence; messages of
        the others are printed.
        """
        await self.startBrokers(1)
        [self.broker] = self.brokers
        await self.publish("t", b"one")
        await self.node("/consumers/g/owners/t/0-1", b"g_somebody-0")
        self.patch(consume, "BACKOFF_MS", 20)
        result = await self.consumed(
            "--topic", "t", "--from-beginning", "--group", "g", "--timeout-ms", "1500"
        )
        self.assertEqual((result.code, result.output), (1, b"one\n"))
        self.assertRegex(
            result.errors,
            r"nothing has come for [\d,]+ ms, and that is not the end: this member has not got its"
            r" share of the partitions",
        )

    async def test_unknownTopic(self) -> None:
        """
        A topic that is not there, or a pattern that no topic matches, is an error; who follows
        waits for it, and is told so.
        """
        await self.startBrokers(1)
        await self.establish("u")
        for which, what in (("--topic", "topic t"), ("--whitelist", "topic that matches")):
            self.assertEqual(
                await self.consumed(which, "t", "--from-beginning"),
                Outcome(1, b"", f"pylogbroker: there is no {what}; there are: u\n"),
            )
        source, sink = self.pipe()
        reading = Deferred.fromCoroutine(
            self.consumed("--topic", "t", "--from-beginning", "--follow", output=sink)
        )
        await self.until(self.isJoined)
        await self.publish("t", b"first")
        self.assertEqual(await read(reactor, source), b"first\n")
        reading.cancel()
        self.assertIn(
            "there is no topic t; there are: u; waiting for the first message\n",
            (await reading).errors,
        )

    async def isJoined(self) -> bool:
        """Whether a member of a group is registered."""
        groups = await self.children("/consumers")
        return bool(groups and await self.children(f"/consumers/{groups[0]}/ids"))

    async def test_unreachable(self) -> None:
        """A ZooKeeper that is not there is an error that names it, within the time-out."""
        result = await self.perform(
            "consume",
            "--zookeeper",
            "127.0.0.1:1",
            "--topic",
            "t",
            "--from-beginning",
            "--timeout-ms",
            "300",
        )
        self.assertEqual((result.code, result.output), (1, b""))
        self.assertRegex(
            result.errors,
            "^pylogbroker: no connection to ZooKeeper at 127.0.0.1:1 within 300 ms.*\n$",
        )

    async def test_missingChroot(self) -> None:
        """A chroot that is not there is an error that names it."""
        result = await self.perform(
            "consume", "--zookeeper", f"{self.servers}/no", "--topic", "t", "--from-beginning"
        )
        self.assertEqual(result.code, 1)
        self.assertRegex(
            result.errors, r"^pylogbroker: the chroot \S+/no of \S+ does not exist.*\n$"
        )

    async def test_deadBroker(self) -> None:
        """
        A broker that is registered and does not answer is an error in the end, and not silence;
        messages of the others are printed.
        """
        await self.startBrokers(1)
        await self.spread("t", b"one")
        await self.node("/brokers/ids/7", b"c:127.0.0.1:1")
        await self.node("/brokers/topics/t/7", b"1")
        result = await self.consumed("--topic", "t", "--from-beginning", "--timeout-ms", "1500")
        self.assertEqual((result.code, result.output), (1, b"one\n"))
        self.assertRegex(
            result.errors,
            r"pylogbroker: nothing has come for [\d,]+ ms, and that is not the end: .*127.0.0.1:1",
        )

    async def test_garbage(self) -> None:
        """
        What somebody else has written, a member that is none, one whose pattern means nothing to
        us, a topic, a broker, an offset and an owner that cannot be, stops nobody.
        """
        await self.startBrokers(1)
        await self.spread("t", b"one", b"two", b"three")
        await self.node("/consumers/g/ids/g_garbage", b"\xff{")
        await self.node("/consumers/g/ids/g_java", rb"*1*\p{javaUpperCase}++")
        await self.node("/consumers/g/ids/g_endless", b"*1*(?!x)(a+)+b")
        await self.node("/consumers/g/offsets/t/0-0", b"garbage")
        await self.node("/consumers/g/owners/t/garbage", b"")
        await self.node("/brokers/ids/garbage", b"garbage")
        await self.node("/brokers/topics/t/garbage", b"2")
        await self.node("/brokers/topics/t/9", b"many")
        result = await self.consumed("--topic", "t", "--from-beginning", "--group", "g")
        self.assertEqual(
            (result.code, sorted(result.output.split())), (0, [b"one", b"three", b"two"])
        )
        self.flushLoggedErrors()
