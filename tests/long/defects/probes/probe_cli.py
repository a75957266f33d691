"""The command line beside one broker, and without any."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout

from twisted.internet.defer import Deferred

from pylogbroker.cli import consume
from pylogbroker.cli.main import parse
from pylogbroker.cli.streams import read
from tests.cli import test_consume, test_main, test_offsets, test_produce, test_verify
from tests.cli.commands import Outcome, reactor

NO_TOPIC = "pylogbroker: the broker has no topic t: nothing was ever published to it\n"


class ConsumeProbes(test_consume.ConsumeTests):
    async def test_unknownTopic(self) -> None:
        await self.startBroker()
        self.assertEqual(await self.consume("--from-beginning"), Outcome(1, b"", NO_TOPIC))

    async def test_silentBroker(self) -> None:
        """The mended command says it after 1.5 s, of the 4 s that it is given here."""
        await self.startBroker()
        self.patch(consume, "POLL_SECONDS", 0.01)
        await self.publish("t", b"old")
        endpoint = self.broker.endpoint
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        self.addCleanup(os.close, sink)
        following = Deferred.fromCoroutine(
            self.consume("--offset", "0", "--follow", "--timeout-ms", "4000", output=sink)
        )
        self.assertEqual(await read(reactor, source), b"old\n")
        await self.broker.broker.stop()
        result = await following
        self.assertEqual(result.code, 1)
        self.assertIn(f"waiting for the broker at {endpoint}; gives up after 4 s\n", result.errors)


class OffsetsProbes(test_offsets.OffsetsTests):
    async def test_unknown(self) -> None:
        await self.startBroker()
        self.assertEqual(await self.offsets(), Outcome(1, b"", NO_TOPIC))


class VerifyProbes(test_verify.VerifyTests):
    def test_nothing(self) -> None:
        folder = self.mktemp()
        os.makedirs(os.path.join(folder, "gtk-3"))
        result = self.verify(folder)
        self.assertEqual(
            (result.code, result.errors.splitlines()[-1]),
            (1, "0 segments with 0 messages: nothing was looked at"),
        )


class ProduceProbes(test_produce.ProduceTests):
    async def test_json(self) -> None:
        broker = await self.startBroker()
        place = ("--broker", broker.endpoint, "--topic", "t")
        result = await self.spawn("produce", self.write(b"one\ntwo\n"), *place, "--json")[0].ended
        self.assertEqual(result.code, 0, result.errors)
        document = {"topic": "t", "messageCount": 2, "payloadSize": 6, "requestCount": 1}
        self.assertEqual(json.loads(result.output), document)

    async def announced(self, option: str, what: str) -> None:
        """The mended command says it after 1.5 s, of the 4 s that it is given here."""
        result = await self.perform(
            "produce",
            self.write(b"a"),
            option,
            "127.0.0.1:1",
            "--topic",
            "t",
            "--timeout-ms",
            "4000",
        )
        self.assertEqual(result.code, 1)
        self.assertEqual(
            result.errors.splitlines()[0],
            f"pylogbroker: waiting for {what} at 127.0.0.1:1; gives up after 4 s",
        )

    async def test_announcedBroker(self) -> None:
        await self.announced("--broker", "the broker")

    async def test_announcedZookeeper(self) -> None:
        await self.announced("--zookeeper", "ZooKeeper")


class TakingProbes(test_main.ProcessTests):
    async def test_announcedTaking(self) -> None:
        address = self.startSilent()
        result = await self.perform(
            "produce", self.write(b"a"), "--broker", address, "--topic", "t", "--timeout-ms", "4000"
        )
        self.assertEqual(result.code, 1)
        self.assertIn(f"waiting for the broker at {address} to take what was sent", result.errors)


class ParserProbes(test_main.ParserTests):
    def test_helpOfNouns(self) -> None:
        output, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            ended = self.assertRaises(SystemExit, parse, ["perf", "--help"])
        self.assertEqual(ended.code, 0, errors.getvalue())
        self.assertIn("simple-consume", output.getvalue())

    def test_wrong(self) -> None:
        code, _output, errors = self.exit("consum")
        self.assertEqual(code, 2)
        self.assertIn("did you mean consume?", errors)
