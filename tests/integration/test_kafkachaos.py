"""
A broker of today's protocol and its Twisted clients that are given no rest, and whether the books
balance in the end; the long form is C{python -m tests.long.kafkachaos}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.testing.localbroker import LocalBroker
from tests.integration.chaosjudge import Fault
from tests.integration.chaosprogram import Program, Record
from tests.integration.chaosrun import runInFolder
from tests.integration.kafkachaos import KafkaChaosTrial
from tests.integration.kafkachaosjudge import (
    NO_OFFSET,
    Allowance,
    Commit,
    Entry,
    Sent,
    Tenure,
    judgeCopies,
    judgeGroup,
    judgeLogs,
)
from tests.integration.kafkachaosmember import consume, publish
from tests.integration.kafkachaosrecords import commitsOf, sentBy, tenuresOf
from tests.integration.numberedmessages import CLICKS, placed
from tests.oracle.directoryrecording import readRecords

SECONDS = 12
SLOWNESS = 10.0
"""The gate must hold on a machine that has other work; the long form allows no slowness."""


class KafkaChaosTests(SynchronousTestCase):
    """A few seconds of faults, from a seed."""

    def test_seed(self) -> None:
        """
        Members, producers, applications and the broker are killed, stopped and started again,
        connections are cut, answers are late, wrong or lost: what was acknowledged is in the log
        once, in order; groups miss nothing and get again only what was not committed; copies in
        transactions are exact; in the end each partition has its one owner.
        """
        seed = SystemRandom().randrange(1 << 32)
        trial = runInFolder(
            "kafkachaos", seed, partial(KafkaChaosTrial, seconds=SECONDS, slowness=SLOWNESS)
        )
        figures = trial.figures
        # There was something to lose, and much was done.
        self.assertGreater(figures.okCount, 500)
        self.assertEqual(figures.copiedCount, figures.loggedCount)
        self.assertGreaterEqual(figures.deliveredCount, 2 * figures.loggedCount)
        self.assertGreaterEqual(
            set(figures.faults),
            {
                "kill broker",
                "stop broker",
                "restart broker",
                "kill copier",
                "kill producer",
                "stop member",
                "cut in request",
                "cut in answer",
                "answer with an error",
                "answer late",
                "lose an answer",
            },
        )


ENTRIES = [Entry(0, "p0.0.1"), Entry(1, "p1.0.0"), Entry(2, "p0.1.1"), Entry(4, "p0.2.0")]
LOGS = {"clicks/0": ENTRIES, "clicks/1": [Entry(7, "p0.3.2"), Entry(8, "p0.5.2")]}
SENT = {
    "p0": Sent(
        range(6),
        {0: "ok", 1: "ok", 2: "unknown", 3: "ok", 4: "failed", 5: "ok"},
        {
            0: ("clicks/0", 0),
            1: ("clicks/0", 2),
            3: ("clicks/1", 7),
            5: ("clicks/1", NO_OFFSET),
        },
    ),
    "p1": Sent(range(2), {}, {}, isKilled=True),
}


class LogTests(SynchronousTestCase):
    """What the logs and their copies would show if something were broken."""

    def judged(self, logs: dict[str, list[Entry]] | None = None, **changes: Any) -> str:
        sent = {**SENT, "p0": SENT["p0"]._replace(**changes)}
        return "\n".join(judgeLogs(sent, LOGS if logs is None else logs))

    def test_balanced(self) -> None:
        """Books that balance are found to."""
        self.assertEqual(self.judged(), "")

    def test_lost(self) -> None:
        """An acknowledged message that is in no log is found."""
        found = self.judged({**LOGS, "clicks/0": ENTRIES[1:]})
        self.assertIn("acknowledged, and in no log: 1: p0.0", found)

    def test_doubled(self) -> None:
        """A message that is there twice is found, in the same partition or in another."""
        for place in LOGS:
            logs = {**LOGS, place: [*LOGS[place], Entry(9, "p0.5.2")]}
            self.assertIn("more than once: 1: p0.5.2", self.judged(logs))

    def test_reordered(self) -> None:
        """Messages that are not in the order of their calls are found, unknown ones, too."""
        logs = {**LOGS, "clicks/0": [*ENTRIES[:2], Entry(2, "p0.2.0"), Entry(4, "p0.1.1")]}
        self.assertIn("out of order: 1: p0.1.1 behind 2 in clicks/0", self.judged(logs))

    def test_divided(self) -> None:
        """A key with messages in two partitions is found."""
        logs = {"clicks/0": ENTRIES, "clicks/1": [Entry(7, "p0.3.1"), Entry(8, "p0.5.1")]}
        self.assertIn("keys in two partitions: 1: 1 in", self.judged(logs))

    def test_outcomes(self) -> None:
        """
        A message that failed and is there is found, as are one of which nothing was said, one that
        was never sent, and an acknowledgement that names another place.
        """
        outcomes = SENT["p0"].outcomes
        self.assertIn("failed, and in a log", self.judged(outcomes={**outcomes, 2: "failed"}))
        self.assertIn("nothing was ever said of it: 1: p0.6", self.judged(numbers=range(7)))
        self.assertIn("never sent: 1: p0.5", self.judged(numbers=range(5)))
        places = {**SENT["p0"].places, 0: ("clicks/0", 1)}
        self.assertIn("something else: 1: p0.0 at clicks/0 1", self.judged(places=places))

    def test_copies(self) -> None:
        """A copy that lacks a message, has one twice, in another order or too much, is found."""
        copies = [entry._replace(offset=2 * entry.offset) for entry in ENTRIES]
        self.assertEqual(judgeCopies(ENTRIES, copies), [])
        for found, broken in (
            (copies[:-1], "not copied: 1: p0.2.0"),
            ([*copies, copies[1]], "copied more than once: 1: p1.0.0"),
            ([*copies[:2], copies[3], copies[2]], "in another order: 1: p0.1.1 behind p0.2.0"),
            ([*copies, Entry(20, "p9.9.9")], "not in the input: 1: p9.9.9"),
        ):
            self.assertIn(broken, "\n".join(judgeCopies(ENTRIES, found)))


def _got(first: float, *indices: int) -> list[tuple[float, int, str]]:
    """Messages of the log, a second after one another."""
    return [(first + number, *ENTRIES[index]) for number, index in enumerate(indices)]


class GroupTests(SynchronousTestCase):
    """What the records of a group would show if something were broken."""

    tenures = (
        Tenure("c0", "clicks/0", 10, 20, _got(11, 0, 1, 2)),
        Tenure("c1", "clicks/0", 21, 40, _got(22, 1, 2, 3)),
    )
    commits = (Commit(13, "clicks/0", 1), Commit(30, "clicks/0", 5))

    def judged(
        self, *tenures: Tenure, commits: tuple[Commit, ...] = (), faults: tuple[Fault, ...] = ()
    ) -> str:
        verdict = judgeGroup(
            {"clicks/0": ENTRIES}, tenures, commits or self.commits, faults, Allowance(2)
        )
        return "\n".join(verdict.faults)

    def test_balanced(self) -> None:
        """What was not committed may come again, to the next owner."""
        verdict = judgeGroup({"clicks/0": ENTRIES}, self.tenures, self.commits, [], Allowance(2))
        self.assertEqual(verdict, ([], 6, 2, 0))

    def test_notDelivered(self) -> None:
        """A message that the group did not get is found, and one that is in no log."""
        first, second = self.tenures
        self.assertIn(
            "not delivered: 1: p0.2.0", self.judged(first, second._replace(got=_got(22, 1, 2)))
        )
        strange = second._replace(got=[*second.got, (30, 9, "p0.9.9")])
        self.assertIn("delivered, and in no log: 1: p0.9.9", self.judged(first, strange))

    def test_gap(self) -> None:
        """An owner that misses a message, or gets one twice, is found."""
        first, second = self.tenures
        for indices in ((1, 3), (1, 2, 2, 3), (1, 3, 2)):
            found = self.judged(first, second._replace(got=_got(22, *indices)))
            self.assertIn("with a gap, or twice to one owner", found)

    def test_again(self) -> None:
        """What comes again although it was committed before the partition came is found."""
        commits = (Commit(13.5, "clicks/0", 2), self.commits[1])
        found = self.judged(*self.tenures, commits=commits)
        self.assertIn("although committed: 1: p1.0.0 at clicks/0 1 to c1, where 2 was", found)

    def test_committedFirst(self) -> None:
        """A position that is committed before what lies in front of it is handled is found."""
        commits = (Commit(11.5, "clicks/0", 2),)
        self.assertIn("before it was handled: 1", self.judged(*self.tenures, commits=commits))

    def test_twoOwners(self) -> None:
        """
        A second owner is found, unless the first one or the broker was stopped before the second
        one came, and the first one has noticed soon after it went on, or after the broker was there
        again.
        """
        first, second = self.tenures
        stop = Fault("stop", "c0", 14, 25)
        for faults, end, isAllowed in (
            ((stop,), 26, True),
            ((stop,), 28, False),  # too late
            ((stop._replace(begin=22),), 26, False),  # afterwards
            ((stop._replace(target="c1"),), 26, False),
            ((stop._replace(kind="kill"),), 26, False),
            ((stop, Fault("broker", "broker", 26, 30)), 31, True),
            ((stop, Fault("broker", "broker", 28, 30)), 31, False),  # it could have noticed
            ((Fault("broker", "broker", 14, 25),), 26, False),  # it could do as much as the others
            ((stop._replace(target="broker"),), 26, True),
            ((stop._replace(end=16), Fault("broker", "broker", 17, 22)), 23, True),
            ((stop._replace(end=16),), 23, False),
        ):
            found = self.judged(first._replace(end=end), second, faults=faults)
            self.assertEqual(found == "", isAllowed, found)


class PlantedTests(TestCase):
    """The programs do something wrong, and the judge finds it in what they write down."""

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.broker = LocalBroker(reactor, {"num.partitions": "1"})
        await self.broker.start()
        self.addCleanup(self.broker.stop)
        self.count = 0

    async def ran(
        self, program: Program, isEnough: Callable[[str], bool], **options: Any
    ) -> list[list[str]]:
        """The record of a program that ran until there was enough in it."""
        self.count += 1
        path = Path(self.mktemp())
        over: Deferred[None] = Deferred()
        properties = {
            "bootstrap.servers": self.broker.bootstrapServers,
            **options.pop("properties", {}),
        }
        given = {"name": "p0", "seed": 1, "properties": properties, **options}
        running: Deferred[None] = ensureDeferred(program(reactor, given, Record(str(path)), over))
        while not isEnough(path.read_text(encoding="utf-8")):
            await deferLater(reactor, 0.02)
        over.callback(None)
        await running
        return [line.split(" ") for line in path.read_text(encoding="utf-8").splitlines()]

    async def logs(self) -> dict[str, list[Entry]]:
        found: Any = await deferToThread(
            readRecords, self.broker.bootstrapServers, [(CLICKS, 0)], "read_committed"
        )
        return {
            placed(CLICKS, 0): [
                Entry(record[0], record[4].rpartition(".")[0]) for record in found[f"{CLICKS}-0"]
            ]
        }

    async def published(self, **properties: str) -> str:
        """What the judge says of a producer whose answers get lost."""
        self.broker.injectDisconnect("Produce", count=3, isHandled=True)
        lines = await self.ran(
            publish, lambda text: text.count("\nok ") > 20, properties=properties
        )
        sent, wrong = sentBy(lines)
        self.assertEqual(wrong, [])
        return "\n".join(judgeLogs({"p0": sent}, await self.logs()))

    async def test_unnumbered(self) -> None:
        """Without idempotence messages are there twice; with it, they are not."""
        self.assertIn("more than once", await self.published(**{"enable.idempotence": "false"}))

    async def test_numbered(self) -> None:
        """An idempotent producer meets the same faults, and the books balance."""
        self.assertEqual(await self.published(), "")

    async def consumed(self, **options: Any) -> str:
        """What the judge says of a group that reads what was published."""
        self.assertEqual(await self.published(), "")
        logs = await self.logs()
        [entries] = logs.values()
        properties = {
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }
        lines = await self.ran(
            consume,
            lambda text: text.count("\ngot ") >= len(entries),
            topic=CLICKS,
            properties=properties,
            **options,
        )
        tenures, wrong = tenuresOf("c0", lines)
        self.assertEqual(wrong, [])
        commits = [*commitsOf(lines)]
        self.assertEqual(commits[-1].offset, entries[-1].offset + 1)
        return "\n".join(judgeGroup(logs, tenures, commits, [], Allowance(2)).faults)

    async def test_committedFirst(self) -> None:
        """A member that commits before it handles is found."""
        self.assertIn("before it was handled", await self.consumed(isCommittedFirst=True))

    async def test_committedBehind(self) -> None:
        """One that commits behind what it has handled is not."""
        self.assertEqual(await self.consumed(), "")
