"""
Tests for L{pylogbroker.cli.commands.group}, with a real ZooKeeper and brokers that are registered
in it.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import Any

from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.zookeeper.ephemeral import write
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome, reactor

PAYLOADS = [b"%02d" % number for number in range(40)]
"""12 bytes each in the log."""

DRY = "nothing was changed; --execute does it\n"


class OffsetsCase(ClusterCase):
    """Groups that are somewhere."""

    async def put(self, group: str, topic: str, **offsets: int) -> None:
        """Positions, by C{p<broker>_<partition>}."""
        for name, offset in offsets.items():
            await write(
                self.admin,
                f"/consumers/{group}/offsets/{topic}/{name[1:].replace('_', '-')}",
                b"%d" % offset,
            )

    async def positions(self, group: str, topic: str) -> dict[str, int]:
        """What stands in ZooKeeper."""
        path = f"/consumers/{group}/offsets/{topic}"
        return {
            name: int((await self.admin.get(f"{path}/{name}"))[0])
            for name in await self.children(path)
        }

    async def member(self, group: str, topic: str) -> None:
        """Somebody is in the group."""
        consumer = ConsumerConnector(
            reactor, {"zk.connect": self.servers, "groupid": group, "autocommit.enable": "false"}
        )
        self.addCleanup(consumer.shutdown)
        await consumer.connect()
        await consumer.createMessageStreams({topic: 1})

    async def groups(self, *arguments: str) -> Outcome:
        return await self.perform("group", *arguments, "--zookeeper", self.servers)


class RoundTripTests(OffsetsCase):
    """Out, and in again."""

    async def test_roundTrip(self) -> None:
        """What was exported is imported, after everything was lost, as it was."""
        await self.put("g", "t", p0_0=12, p0_1=0)
        await self.put("g", "u", p1_0=2**62)
        await self.put("h", "t", p0_0=5)
        path = os.path.join(self.mktemp())
        result = await self.groups("export", "--output", path)
        self.assertEqual(result, Outcome(0, b"", "exported 4 offsets of 2 groups\n"))
        with open(path, encoding="utf-8") as file:
            text = file.read()
        lines = [
            "g/offsets/t/0-0:12",
            "g/offsets/t/0-1:0",
            f"g/offsets/u/1-0:{2**62}",
            "h/offsets/t/0-0:5",
        ]
        self.assertEqual(text, "".join(f"/consumers/{line}\n" for line in lines))
        for topic, name in (("t", "0-0"), ("t", "0-1")):
            await self.admin.delete(f"/consumers/g/offsets/{topic}/{name}")
        await self.put("h", "t", p0_0=77)
        result = await self.groups("import", path, "--execute")
        self.assertEqual((result.code, result.errors), (0, "set 4 offsets\n"))
        self.assertEqual(await self.positions("g", "t"), {"0-0": 12, "0-1": 0})
        self.assertEqual(await self.positions("g", "u"), {"1-0": 2**62})
        self.assertEqual(await self.positions("h", "t"), {"0-0": 5})
        self.assertEqual((await self.groups("export")).output.decode(), text)


class ExportTests(OffsetsCase):
    """Out."""

    async def test_chosen(self) -> None:
        """Of some groups; as lines, and as JSON."""
        await self.put("g", "t", p0_0=12)
        await self.put("h", "t", p0_0=5)
        self.assertEqual(
            (await self.groups("export", "h")).output, b"/consumers/h/offsets/t/0-0:5\n"
        )
        document = json.loads((await self.groups("export", "h", "--json")).output)
        self.assertEqual(
            document,
            {
                "offsets": [{"group": "h", "topic": "t", "broker": 0, "partition": 0, "offset": 5}],
                "problems": [],
            },
        )

    async def test_refused(self) -> None:
        """
        A group that is not there is an error, and so is a file that is there: it may be the only
        copy.
        """
        await self.put("g", "t", p0_0=12)
        result = await self.groups("export", "x")
        self.assertEqual(
            result, Outcome(1, b"", "pylogbroker: there is no consumer group x; there are: g\n")
        )
        path = self.write(b"precious")
        result = await self.groups("export", "--output", path)
        self.assertEqual(
            result, Outcome(1, b"", f"pylogbroker: cannot write {path}: File exists\n")
        )

    async def test_garbage(self) -> None:
        """
        What cannot be read is named, and makes the exit code 1, so that nobody takes the file for
        complete.
        """
        await self.put("g", "t", p0_0=12)
        await self.node("/consumers/g/offsets/t/0-1", b"many")
        await self.node("/consumers/g/offsets/t/odd", b"1")
        result = await self.groups("export")
        self.assertEqual((result.code, result.output), (1, b"/consumers/g/offsets/t/0-0:12\n"))
        self.assertIn("/consumers/g/offsets/t/0-1", result.errors)
        self.assertIn("'odd'", result.errors)


class ImportTests(OffsetsCase):
    """In."""

    async def test_dryRun(self) -> None:
        """Without --execute it is shown what would be changed, and nothing is."""
        await self.put("g", "t", p0_0=12)
        path = self.write(b"/consumers/g/offsets/t/0-0:2\n/consumers/g/offsets/t/0-1:3\n")
        result = await self.groups("import", path)
        rows = [line.split() for line in result.output.decode().splitlines()]
        self.assertEqual((result.code, result.errors), (0, DRY))
        self.assertEqual(
            rows,
            [
                ["GROUP", "TOPIC", "PARTITION", "OLD", "NEW", "CHANGE"],
                ["g", "t", "0-0", "12", "2", "-10"],
                ["g", "t", "0-1", "-", "3", "-"],
            ],
        )
        self.assertEqual(await self.positions("g", "t"), {"0-0": 12})

    async def test_bad(self) -> None:
        """A file that is no export changes nothing; the line is named."""
        good = b"/consumers/g/offsets/t/0-0:2\n"
        for data, reason in ((good + b"nonsense\n", "line 2"), (good + b"\xff", "not UTF-8")):
            result = await self.groups("import", self.write(data), "--execute")
            self.assertEqual((result.code, result.output), (1, b""))
            self.assertIn(reason, result.errors)
        result = await self.groups("import", "/nonexistent", "--execute")
        self.assertEqual(
            result,
            Outcome(1, b"", "pylogbroker: cannot read '/nonexistent': No such file or directory\n"),
        )
        self.assertEqual(await self.children("/consumers"), [])

    async def test_number(self) -> None:
        """
        A number at which no message begins is refused, also before anything is done, unless it is
        forced; a broker that is not there refuses nothing.
        """
        await self.startBrokers(1, num_partitions="1")
        await self.establish("t", *PAYLOADS)
        path = self.write(b"/consumers/g/offsets/t/7-0:13\n/consumers/g/offsets/t/0-0:13\n")
        for more in ((), ("--execute",)):
            result = await self.groups("import", path, *more)
            self.assertEqual((result.code, result.output), (1, b""))
            self.assertIn("at offset 13 of t 0-0 no message begins", result.errors)
        self.assertEqual(await self.children("/consumers"), [])
        self.assertEqual((await self.groups("import", path, "--execute", "--force")).code, 0)
        self.assertEqual(await self.positions("g", "t"), {"0-0": 13, "7-0": 13})
        path = self.write(
            b"/consumers/g/offsets/t/7-0:14\n/consumers/g/offsets/t/7-1:14\n/consumers/g/offsets/t/0-0:12\n"
        )
        self.assertEqual((await self.groups("import", path, "--execute")).code, 0)
        self.assertEqual(await self.positions("g", "t"), {"0-0": 12, "7-0": 14, "7-1": 14})

    async def test_members(self) -> None:
        """
        Under members nothing is changed, since they would write their own; unless it is forced.
        """
        await self.startBrokers(1)
        await self.establish("t", *PAYLOADS)
        await self.put("g", "t", p0_0=12)
        await self.member("g", "t")
        path = self.write(b"/consumers/g/offsets/t/0-0:24\n")
        result = await self.groups("import", path)
        self.assertEqual(result.code, 0)
        self.assertIn("there are members in g", result.errors)
        result = await self.groups("import", path, "--execute")
        self.assertEqual(result.code, 1)
        self.assertIn("nothing was changed: there are members in g", result.errors)
        self.assertEqual((await self.positions("g", "t"))["0-0"], 12)
        result = await self.groups("import", path, "--execute", "--force")
        self.assertEqual((result.code, result.errors.splitlines()[-1]), (0, "set 1 offset"))
        self.assertEqual((await self.positions("g", "t"))["0-0"], 24)


class ResetTests(OffsetsCase):
    """To a place of one's own choice."""

    async def reset(self, *arguments: str) -> Outcome:
        return await self.groups("reset", "g", *arguments)

    async def test_bounds(self) -> None:
        """To the oldest message, and behind the last, of every partition."""
        await self.startBrokers(2)
        await self.establish("t", b"first")
        await self.spread("t", *PAYLOADS)
        await self.put("g", "t", p0_0=15)
        ends = {
            f"{broker}-{partition}": sum(10 + len(each) for each in found)
            for (broker, partition), found in (await self.stored("t")).items()
        }
        self.assertEqual(len(ends), 4)
        result = await self.reset("--to-latest", "--json")
        changes = [
            {
                "group": "g",
                "topic": "t",
                "broker": int(name[0]),
                "partition": int(name[2]),
                "old": 15 if name == "0-0" else None,
                "new": end,
            }
            for name, end in sorted(ends.items())
        ]
        self.assertEqual(
            (result.code, json.loads(result.output), result.errors),
            (0, {"changes": changes, "executed": False}, DRY),
        )
        self.assertEqual(await self.positions("g", "t"), {"0-0": 15})
        self.assertEqual((await self.reset("--to-latest", "--execute")).errors, "set 4 offsets\n")
        self.assertEqual(await self.positions("g", "t"), ends)
        self.assertEqual(
            (
                await self.reset(
                    "--to-earliest", "--execute", "--partition", "1-0", "--partition", "0-1"
                )
            ).errors,
            "set 2 offsets\n",
        )
        self.assertEqual(await self.positions("g", "t"), {**ends, "1-0": 0, "0-1": 0})

    async def test_time(self) -> None:
        """
        To a time: where the last segment begins that was written no more after it, or, if all were,
        to the oldest message.
        """
        await self.startBrokers(1, num_partitions="1", log_file_size="20")
        for number in range(3):
            await self.establish("t", b"%d" % number * 20)  # 30 bytes in the log, a segment each
        times = [datetime(2026, 1, day, tzinfo=UTC).timestamp() for day in (1, 2, 3)]
        await self.restartAged("t", times, num_partitions="1", log_file_size="20")
        for moment, offset in (
            ("2025-12-31T12:00Z", 0),
            ("2026-01-01T12:00Z", 0),
            ("2026-01-02T12:00Z", 30),
            ("1767441600000", 60),
        ):
            result = await self.reset("--to-datetime", moment, "--topic", "t", "--execute")
            self.assertEqual((result.code, result.errors), (0, "set 1 offset\n"), moment)
            self.assertEqual(await self.positions("g", "t"), {"0-0": offset}, moment)

    async def test_number(self) -> None:
        """
        To a number at which a message begins, or the log ends; any other is refused, unless it is
        forced.
        """
        await self.startBrokers(1, num_partitions="1")
        await self.establish("t", *PAYLOADS)
        place = ("--topic", "t", "--execute")
        for offset in (12, 480):
            self.assertEqual((await self.reset("--to-offset", str(offset), *place)).code, 0)
            self.assertEqual(await self.positions("g", "t"), {"0-0": offset})
        for offset, reason in (
            (481, "t 0-0 holds 0 to 480, and not 481"),
            (13, "at offset 13 of t 0-0 no message begins"),
        ):
            result = await self.reset("--to-offset", str(offset), *place)
            self.assertEqual((result.code, result.output), (1, b""))
            self.assertIn(reason, result.errors)
            self.assertEqual(await self.positions("g", "t"), {"0-0": 480})
        self.assertEqual((await self.reset("--to-offset", "13", "--force", *place)).code, 0)
        self.assertEqual(await self.positions("g", "t"), {"0-0": 13})

    async def test_nothing(self) -> None:
        """What is not there cannot be reset."""
        await self.startBrokers(1)
        await self.establish("t", b"one")
        for arguments, reason in (
            ((), "the group g has no positions; give --topic"),
            (("--topic", "u"), "there is no topic u"),
            (("--topic", "t", "--partition", "5-5"), "there is no partition 5-5 of t"),
        ):
            result = await self.reset("--to-latest", *arguments)
            self.assertEqual((result.code, result.output), (1, b""))
            self.assertIn(reason, result.errors)
        await self.put("g", "gone", p0_0=1)
        self.assertIn("gone has no partitions", (await self.reset("--to-latest")).errors)

    async def test_goesOn(self) -> None:
        """A group that was reset goes on there."""
        await self.startBrokers(1, num_partitions="1")
        await self.establish("t", *PAYLOADS)
        group: tuple[Any, ...] = ("--topic", "t", "--group", "g")
        self.assertEqual((await self.consumed(*group, "--from-beginning")).output.split(), PAYLOADS)
        await self.reset("--to-offset", "360", "--execute")
        self.assertEqual((await self.consumed(*group)).output.split(), PAYLOADS[30:])
