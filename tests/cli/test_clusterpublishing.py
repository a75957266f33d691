"""
Tests for L{pylogbroker.cli.publisher}, with a real ZooKeeper and brokers that are registered in it.
"""

from __future__ import annotations

import os
import random

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.cli.main import CANCELLED
from pylogbroker.cli.publisher import ClusterPublisher, PublisherLimits
from pylogbroker.cluster.partitioner import defaultPartitioner
from pylogbroker.config.securitysettings import PLAIN
from pylogbroker.errors import ConfigurationError
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome, reactor


class ClusterPublisherTests(ClusterCase):
    """Lines become messages somewhere in the cluster."""

    async def produce(self, *arguments: str, descriptor: int = -1) -> Outcome:
        return await self.perform(
            "produce",
            *arguments,
            "--zookeeper",
            self.servers,
            "--topic",
            "t",
            descriptor=descriptor,
        )

    async def test_lines(self) -> None:
        """
        Each line of a file is a message on one of the brokers, in any codec; what was done is said
        on standard error.
        """
        await self.startBrokers()
        await self.establish("t")
        lines = [b"line %d" % number for number in range(1_000)]
        path = self.write(b"\n".join(lines))
        for codec in ("none", "gzip", "snappy"):
            result = await self.produce(path, "--compression", codec)
            self.assertRegex(
                result.errors,
                r"^sent 1,000 messages \(7.9 kB\) in \d+ requests to t, whose brokers have taken"
                r" them all\n$",
            )
            self.assertEqual(result[:2], (0, b""))
        stored = await self.stored("t")
        self.assertEqual(
            sorted(payload for payloads in stored.values() for payload in payloads),
            sorted([b"first"] * 2 + lines * 3),
        )
        self.assertEqual({broker for broker, _partition in stored}, {0, 1})

    async def test_keys(self) -> None:
        """
        A key before the separator says where the rest of the line goes, as to 0.7's clients, and is
        not sent; text and bytes can be keys.
        """
        await self.startBrokers()
        await self.establish("t")
        keys = ["", "a", "bb", "ccc", "ä", "\U0001d11e"]
        path = self.write(
            b"".join(f"{key}\t{key} {number}\tx\n".encode() for number in range(20) for key in keys)
            + b"\xff\tbytes\nkeyless\n"
        )
        self.assertEqual((await self.produce(path, "--key-separator", "\\t")).code, 0)
        stored = await self.stored("t")
        places = [(broker, partition) for broker in (0, 1) for partition in (0, 1)]
        for key in keys:
            found = stored[places[defaultPartitioner(key, 4)]]
            wanted = [f"{key} {number}\tx".encode() for number in range(20)]
            self.assertEqual([each for each in found if each in wanted], wanted)
        self.assertIn(b"bytes", stored[places[defaultPartitioner(b"\xff", 4)]])
        self.assertEqual(
            [payload for payloads in stored.values() for payload in payloads].count(b"keyless"), 1
        )

    async def test_pipe(self) -> None:
        """Lines from a pipe are sent as they come; ended, the command says how far it came."""
        await self.startBrokers(1)
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, sink)
        producing = Deferred.fromCoroutine(self.produce("-", descriptor=source))
        for number in range(3):
            os.write(sink, b"%d\n" % number)
            while sum(map(len, (await self.stored("t")).values())) <= number:
                await deferLater(reactor, 0.01)
        producing.cancel()
        self.assertEqual(await producing, Outcome(CANCELLED, b"", "ended after 3 messages\n"))

    async def test_unreachable(self) -> None:
        """A ZooKeeper that is not there is an error that names it, within the time-out."""
        result = await self.perform(
            "produce",
            self.write(b"a\n"),
            "--zookeeper",
            "127.0.0.1:1",
            "--topic",
            "t",
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
            "produce", self.write(b"a\n"), "--zookeeper", f"{self.servers}/no", "--topic", "t"
        )
        self.assertEqual(result.code, 1)
        self.assertRegex(
            result.errors, r"^pylogbroker: the chroot \S+/no of \S+ does not exist.*\n$"
        )

    async def test_garbage(self) -> None:
        """What somebody else has written into the registries is named, and stops nobody."""
        await self.startBrokers(1)
        await self.node("/brokers/ids/garbage", b"garbage")
        await self.node("/brokers/ids/8", b"\xff")
        await self.node("/brokers/topics/t/garbage", b"2")
        await self.node("/brokers/topics/t/0", b"many")
        result = await self.produce(self.write(b"a\nb\n"))
        self.assertEqual(result.code, 0, result.errors)
        self.assertEqual(
            sorted(
                payload for payloads in (await self.stored("t")).values() for payload in payloads
            ),
            [b"a", b"b"],
        )

    async def test_noBrokers(self) -> None:
        """A cluster without brokers is an error that says how much was not sent."""
        result = await self.produce(self.write(b"a\nb\n"))
        self.assertEqual(result.code, 1)
        self.assertIn("pylogbroker: there is no broker for topic t", result.errors)
        self.assertRegex(
            result.errors,
            "\nof 2 lines 0 were confirmed, 2 were not sent, 0 may have been taken or not\n$",
        )
        self.flushLoggedErrors()

    async def test_tooLong(self) -> None:
        """
        A line over the limit is an error with its number; what does not shrink when it is
        compressed is sent in smaller batches.
        """
        await self.startBrokers(1)
        incompressible = b"".join(
            random.Random(number).randbytes(300).replace(b"\n", b"") + b"\n" for number in range(50)
        )
        self.assertEqual(
            (
                await self.produce(
                    self.write(incompressible),
                    "--max-message-size",
                    "1000",
                    "--compression",
                    "gzip",
                )
            ).code,
            0,
        )
        path = self.write(b"1\n" + b"x" * 1001)
        result = await self.produce(path, "--max-message-size", "1000")
        self.assertEqual(result.code, 1)
        self.assertIn(f"line 2 of {path} is too long", result.errors)

    async def test_nothingGiven(self) -> None:
        """Servers that are none are an error."""
        for servers in ("", " "):
            self.assertRaises(
                ConfigurationError,
                ClusterPublisher,
                reactor,
                servers,
                "t",
                PublisherLimits(0, 1, 1, 1),
                PLAIN,
            )
