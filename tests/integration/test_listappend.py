"""The judge of transactions that append to lists: planted anomalies are found, and named."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.testing.localbroker import LocalBroker
from tests.integration.chaosprogram import Record
from tests.integration.listappend import (
    ABORTED,
    OK,
    UNKNOWN,
    Append,
    Read,
    Transaction,
    TransactionsVerdict,
    judgeTransactions,
)
from tests.integration.numberedmessages import placed
from tests.long.appender import LISTS, append, transactionsOf
from tests.oracle.directoryrecording import readRecords

A, B = Append("x/0", "a"), Append("x/1", "b")


def _serialHistory(random: Random, count: int) -> tuple[list[Transaction], dict[str, list[str]]]:
    """Transactions one after the other, some of them aborted, and the lists behind them."""
    lists: dict[str, list[str]] = {"x/0": [], "x/1": [], "x/2": []}
    found = []
    for number in range(count):
        outcome = random.choice((OK, OK, OK, UNKNOWN, ABORTED))
        steps: list[Append | Read] = []
        written: list[Append] = []
        for step in range(random.randrange(1, 5)):
            place = random.choice([*lists])
            if steps and random.random() < 0.5:
                steps.append(Read(place, tuple(lists[place])))
            else:
                steps.append(Append(place, f"{number}.{step}"))
                written.append(Append(place, f"{number}.{step}"))
        if outcome == OK or (outcome == UNKNOWN and random.random() < 0.5):
            for each in written:
                lists[each.place].append(each.value)
        found.append(Transaction(f"t{number}", steps, outcome, number, number + 0.5))
    return found, lists


class ListAppendTests(SynchronousTestCase):
    """Short histories."""

    def check(self, *expected: str, lists: Any, transactions: Any) -> None:
        """These are the sentences; each is expected by its beginning and end, around a C{…}."""
        faults = judgeTransactions(transactions, lists).faults
        self.assertEqual(len(faults), len(expected), faults)
        for fault, each in zip(faults, expected, strict=True):
            begin, _, end = each.partition("…")
            self.assertTrue(fault.startswith(begin) and fault.endswith(end), (fault, each))

    def test_serial(self) -> None:
        """A serial history has no fault; its figures are right."""
        for seed in range(50):
            history, lists = _serialHistory(Random(seed), 40)
            verdict = judgeTransactions(history, lists)
            self.assertEqual(verdict.faults, [], seed)
            self.assertEqual(verdict.committedCount + verdict.abortedCount, 40)
            self.assertGreater(verdict.edgeCount, 20)

    def test_shuffled(self) -> None:
        """Two appends of a serial history in each other's place are noticed."""
        noticed = 0
        for seed in range(50):
            random = Random(seed)
            history, lists = _serialHistory(random, 40)
            place = random.choice([*lists])
            at = random.randrange(len(lists[place]) - 1)
            one, other = lists[place][at : at + 2]
            if one.partition(".")[0] == other.partition(".")[0]:
                continue
            lists[place][at : at + 2] = [other, one]
            noticed += 1
            self.assertTrue(judgeTransactions(history, lists).faults, seed)
        self.assertGreater(noticed, 30)

    def test_aborted(self) -> None:
        """An aborted transaction is seen, at the end or by a reader only."""
        history = [
            Transaction("t1", [A], ABORTED),
            Transaction("t2", [B, Read("x/0", ["a"])], OK),
        ]
        self.check(
            "G1a, aborted and in a list: 1: a in x/0",
            "G1a, aborted and read: 1: a of x/0 by t2",
            lists={"x/0": ["a"], "x/1": ["b"]},
            transactions=history,
        )
        self.check(
            "G1a, aborted and read: 1: a of x/0 by t2",
            "read, and no beginning of the list at the end: 1: 1 of x/0 by t2",
            lists={"x/0": [], "x/1": ["b"]},
            transactions=history,
        )

    def test_lost(self) -> None:
        """A committed transaction is not there, or only in part."""
        self.check(
            "t1 is committed (ok), and there not at all",
            lists={"x/0": []},
            transactions=[Transaction("t1", [A], OK)],
        )
        for outcome in (OK, UNKNOWN):
            self.check(
                f"t1 is committed ({outcome}), and there in part",
                lists={"x/0": ["a"]},
                transactions=[Transaction("t1", [A, B], outcome)],
            )
        self.check(lists={}, transactions=[Transaction("t1", [A, B], UNKNOWN)])

    def test_strange(self) -> None:
        """A value is there twice, or was never appended."""
        self.check(
            "never appended, and in a list: 1: ('x/0', 'c')",
            "more than once in x/0: 2: a, a",
            lists={"x/0": ["a", "c", "a"]},
            transactions=[Transaction("t1", [A], OK)],
        )

    def test_intermediate(self) -> None:
        """A read between two appends of a transaction."""
        twice = Transaction("t1", [A, Append("x/0", "c")], OK)
        self.check(
            "G1b, read between two appends of a transaction: 1: a of x/0 by t2",
            "a cycle: 1: G-single: …",
            lists={"x/0": ["a", "c"], "x/1": ["b"]},
            transactions=[twice, Transaction("t2", [B, Read("x/0", ["a"])], OK)],
        )

    def test_writeCycle(self) -> None:
        """G0: two transactions append to two lists in different orders."""
        self.check(
            "a cycle: 1: G0: t1 -ww-> t2 -ww-> t1",
            lists={"x/0": ["a", "c"], "x/1": ["d", "b"]},
            transactions=[
                Transaction("t1", [A, B], OK),
                Transaction("t2", [Append("x/0", "c"), Append("x/1", "d")], OK),
            ],
        )

    def test_readCycle(self) -> None:
        """G1c: each of two transactions has read what the other one has appended."""
        self.check(
            "a cycle: 1: G1c: t1 -wr-> t2 -wr-> t1",
            lists={"x/0": ["a"], "x/1": ["b"]},
            transactions=[
                Transaction("t1", [A, Read("x/1", ["b"])], OK),
                Transaction("t2", [B, Read("x/0", ["a"])], OK),
            ],
        )

    def test_readSkew(self) -> None:
        """G-single: a transaction has seen one append of another, and not the one before."""
        self.check(
            "a cycle: 1: G-single: …",
            lists={"x/0": ["a"], "x/1": ["b"], "x/2": ["c"]},
            transactions=[
                Transaction("t1", [A, B], OK),
                Transaction("t2", [Append("x/2", "c"), Read("x/0", ["a"]), Read("x/1", [])], OK),
            ],
        )

    def test_writeSkew(self) -> None:
        """G2: neither of two transactions has seen the other."""
        self.check(
            "a cycle: 1: G2: t1 -rw-> t2 -rw-> t1",
            lists={"x/0": ["a"], "x/1": ["b"]},
            transactions=[
                Transaction("t1", [A, Read("x/1", [])], OK),
                Transaction("t2", [B, Read("x/0", [])], OK),
            ],
        )

    def test_stale(self) -> None:
        """A read lacks what was committed before its transaction began."""
        history = [
            Transaction("t1", [A], OK, 1, 2),
            Transaction("t2", [B, Read("x/0", [])], OK, 3, 4),
        ]
        lists = {"x/0": ["a"], "x/1": ["b"]}
        self.check(
            "a cycle: 1: G-single-realtime: t1 -rt-> t2 -rw-> t1",
            lists=lists,
            transactions=history,
        )
        early = history[1]._replace(begin=1.5)
        self.check(lists=lists, transactions=[history[0], early])

    def test_fencedWrite(self) -> None:
        """A producer that was paused writes behind the one that has fenced it."""
        lists = {"x/0": ["1", "3"], "x/1": ["4", "2"]}
        self.check(
            "a cycle: 1: G0: …",
            lists=lists,
            transactions=[
                Transaction("t1", [Append("x/0", "1"), Append("x/1", "2")], OK, 1, 9),
                Transaction("t2", [Append("x/0", "3"), Append("x/1", "4")], OK, 5, 6),
            ],
        )


class AppenderTests(TestCase):
    """Two applications that append to lists and read them, on a broker without faults."""

    timeout = 120
    PARTITION_COUNT = 3

    async def judged(self, *ids: str) -> TransactionsVerdict:
        """What the judge says of applications with these C{transactional.id}."""
        broker = LocalBroker(reactor, {"num.partitions": str(self.PARTITION_COUNT)})
        self.addCleanup(broker.stop)
        await broker.start()
        servers = {"bootstrap.servers": broker.bootstrapServers}
        over: Deferred[None] = Deferred()
        running, paths = [], {}
        for number, each in enumerate(ids):
            name = f"appender{number}"
            paths[name] = self.mktemp()
            options = {
                "name": name,
                "seed": number,
                "haste": 20,
                "partitions": self.PARTITION_COUNT,
                "producer": {**servers, "transactional.id": each, "linger.ms": "0"},
                "consumer": {
                    **servers,
                    "isolation.level": "read_committed",
                    "fetch.max.wait.ms": "20",
                },
            }
            running.append(ensureDeferred(append(reactor, options, Record(paths[name]), over)))
        while any(Path(each).read_text("utf-8").count("\nok ") < 15 for each in paths.values()):
            await deferLater(reactor, 0.02)
        over.callback(None)
        for application in running:
            await application
        places = [(LISTS, number) for number in range(self.PARTITION_COUNT)]
        found: Any = await deferToThread(
            readRecords, broker.bootstrapServers, places, "read_committed"
        )
        lists = {
            placed(*place): [
                record[4].rpartition(".")[0] for record in found[f"{place[0]}-{place[1]}"]
            ]
            for place in places
        }
        history = [
            each
            for name, path in paths.items()
            for each in transactionsOf(
                name, (line.split(" ") for line in Path(path).read_text("utf-8").splitlines())
            )
        ]
        return judgeTransactions(history, lists)

    async def test_oneId(self) -> None:
        """With one id they fence each other, and the history is strictly serializable."""
        verdict = await self.judged("a", "a")
        self.assertEqual(verdict.faults, [])
        self.assertGreaterEqual(verdict.committedCount, 30)
        self.assertGreater(verdict.readCount, 10)

    async def test_twoIds(self) -> None:
        """With an id each they are not isolated from each other, and the judge finds it."""
        verdict = await self.judged("a", "b")
        self.assertTrue(any("a cycle" in each for each in verdict.faults), verdict.faults)
