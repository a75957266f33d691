"""Tests for L{pylogbroker.cli.commands.cluster}."""

from __future__ import annotations

import json

from tests.cli.commands import CommandCase, Outcome


class OffsetsTests(CommandCase):
    """Where a partition begins and ends."""

    async def offsets(self, *arguments: str) -> Outcome:
        return await self.perform(
            "offset", "list", "--broker", self.broker.endpoint, "--topic", "t", *arguments
        )

    async def test_offsets(self) -> None:
        """The latest, the earliest, and several; one a line."""
        await self.startBroker(log_file_size="20")
        for _ in range(3):
            await self.publish("t", b"x" * 20)
        self.assertEqual(await self.offsets(), Outcome(0, b"90\n", ""))
        self.assertEqual(await self.offsets("--time", "earliest"), Outcome(0, b"0\n", ""))
        self.assertEqual(await self.offsets("--count", "10"), Outcome(0, b"90\n60\n30\n0\n", ""))
        document = json.loads((await self.offsets("--count", "2", "--json")).output)
        self.assertEqual(document, {"topic": "t", "partition": 0, "offsets": [90, 60]})

    async def test_time(self) -> None:
        """A time finds the segments that were last written to before it; none is said."""
        await self.startBroker(log_file_size="20")
        for _ in range(2):
            await self.publish("t", b"x" * 20)
        self.assertEqual(
            await self.offsets("--time", "2100-01-01", "--count", "9"),
            Outcome(0, b"60\n30\n0\n", ""),
        )
        self.assertEqual(await self.offsets("--time", "4102444800000"), Outcome(0, b"60\n", ""))
        self.assertEqual(
            await self.offsets("--time", "2001-09-10"),
            Outcome(0, b"", "no segment file is that old\n"),
        )

    async def test_unknown(self) -> None:
        """A topic that nobody published to is an error, and so is a partition that is not there."""
        await self.startBroker()
        self.assertEqual(
            await self.offsets(),
            Outcome(
                1,
                b"",
                "pylogbroker: the broker has no topic t: nothing was ever published to it\n",
            ),
        )
        self.assertEqual(
            await self.offsets("--partition", "3"),
            Outcome(1, b"", "pylogbroker: the broker has no partition 3 of topic t\n"),
        )
