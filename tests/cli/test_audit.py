"""
Tests for L{pylogbroker.cli.commands.audit}: C{pylogbroker audit}.
"""

from __future__ import annotations

import json

from pylogbroker.config.auditsettings import AUDIT_TOPIC
from pylogbroker.producer.kafka.producer import KafkaProducer
from tests.auditor.auditcase import AuditCase, report
from tests.cli.commands import Outcome, reactor


def secondsOf(payload: bytes) -> int:
    """For C{timeof}: a payload that is its time."""
    return int(payload)


class AuditTests(AuditCase):
    """One pass, and an exit status."""

    async def audit(self, *arguments: str) -> Outcome:
        tiers = [word for tier in self.tiers() for word in ("--tier", tier)]
        return await self.perform(
            "audit", *tiers, "--set", "audit.window.ms=1000", "--set", "timeout.ms=2000", *arguments
        )

    async def test_whole(self) -> None:
        """Nothing is missing: 0, and a table."""
        await self.fill()
        code, output, errors = await self.audit()
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(output.decode().splitlines()[-1], "nothing is missing")
        self.assertEqual(len(output.decode().splitlines()), 6)

    async def test_hole(self) -> None:
        """Something is: 3, and where."""
        await self.fill()
        await self.fill(10, 7, startMs=2000)
        code, output, _errors = await self.audit("--brief")
        self.assertEqual(code, 3)
        text = output.decode()
        self.assertEqual(len(text.splitlines()), 5)
        self.assertIn("3 messages are missing in 1 place", text)

    async def test_json(self) -> None:
        """One JSON document for programs, with the same status."""
        await self.fill(9)
        code, output, _errors = await self.audit("--json", "--topic", "clicks")
        self.assertEqual((code, json.loads(output)["isComplete"]), (3, False))

    async def test_uncertain(self) -> None:
        """A cluster that cannot be read: 1, and why."""
        await self.fill()
        await self.mirror.stop()
        code, output, errors = await self.audit("--set", "timeout.ms=200")
        self.assertEqual(code, 1)
        self.assertIn(b"mirror was not audited", output)
        self.assertIn("not everything could be counted", errors)

    async def test_config(self) -> None:
        """A property file says the same; what is wrong with it is said in a line."""
        await self.fill()
        path = self.write(
            f"tiers={'|'.join(self.tiers())}\naudit.window.ms=1000\nmisspelt=1\n".encode()
        )
        code, _output, errors = await self.perform(
            "audit", "--config", path, "--set", "topics=clicks"
        )
        self.assertEqual(code, 0)
        self.assertIn("misspelt", errors)
        code, _output, errors = await self.perform("audit", "--config", path, "--set", "grace.ms=x")
        self.assertEqual((code, "grace.ms=x" in errors), (1, True))

    async def test_nothingToAudit(self) -> None:
        """Without a tier there is nothing to do."""
        code, _output, errors = await self.perform("audit")
        self.assertEqual((code, "--tier" in errors), (1, True))

    async def test_timeOf(self) -> None:
        """C{timeof} names a function of the application's."""
        await self.put(self.live, "clicks", b"%d" % self.base)
        await self.put(self.mirror, "clicks", b"%d" % self.base)
        await self.put(self.live, AUDIT_TOPIC, report("clicks", self.base, 1))
        code, output, _errors = await self.audit("--set", "timeof=tests.cli.test_audit.secondsOf")
        self.assertEqual(code, 0)
        self.assertNotIn(b"note", output)

    async def test_today(self) -> None:
        """A cluster of today beside one of 2011; a password for the wrong tier is an error."""
        await self.fill(10, 10)
        producer = KafkaProducer(reactor, {"bootstrap.servers": self.live.bootstrapServers})
        await self.put(self.mirror, AUDIT_TOPIC, report("new", self.base, 3, timeSource="record"))
        for _number in range(2):
            producer.sendNoWait("new", b"x", timestamp=self.base)
        await producer.close()
        arguments = (
            *("audit", "--tier", f"today=kafka:{self.live.bootstrapServers}"),
            *("--tier", self.tiers()[1], "--set", "audit.window.ms=1000", "--topic", "new"),
        )
        code, output, _errors = await self.perform(*arguments, "--json")
        [line] = [each for each in json.loads(output)["windows"] if each["tier"] == "today"]
        self.assertEqual((code, line["missingCount"], line["seenCount"]), (3, 1, 2))
        code, _output, errors = await self.perform(
            *arguments, "--set", "tier.mirror.sasl.username=x"
        )
        self.assertEqual((code, "tier.mirror.sasl.username" in errors), (1, True))

    async def test_process(self) -> None:
        """As cron runs it, with its exit status."""
        await self.fill(10, 9)
        process, _transport = self.spawn(
            "audit",
            "--tier",
            self.tiers()[1],
            "--tier",
            self.tiers()[0],
            "--set",
            "audit.window.ms=1000",
        )
        code, output, errors = await process.ended
        self.assertEqual((code, errors), (3, ""), output)
