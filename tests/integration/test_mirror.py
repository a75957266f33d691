"""
The mirror between two clusters of processes with a real ZooKeeper; the long form is C{python -m
tests.long.mirror}.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from random import SystemRandom
from urllib.request import urlopen

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.records.messageset import encodeSet
from tests.console.asking import figures
from tests.integration.brokerprocess import until
from tests.integration.mirroraudit import CUT_COUNT, MirrorAudit
from tests.integration.mirrortrial import PARTITION_COUNT, TOPIC, MirrorTrial
from tests.integration.zookeeperprocess import sharedZookeeper

MESSAGE_COUNT = 50_000
LARGE_COUNT = 1_500
LARGE_SIZE = 100_000


class MirrorTests(SynchronousTestCase):
    """C{twistd pylogbroker-mirror} as a process."""

    def test_nothingMissing(self) -> None:
        """
        Numbered messages are mirrored while the mirror is killed and the target restarted: none is
        missing, and those that are there twice are those that had been sent and not committed at
        the kill (rows 120, 132). The audit of source and target says of each window what is there,
        counts what is there twice, and names the holes that are planted, and no others.
        """
        seed = SystemRandom().randrange(1 << 32)
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        trial = MirrorTrial(folder, sharedZookeeper(), f"mirror{seed}", seed)
        self.addCleanup(trial.end)
        sys.stdout.write(f"[seed {seed}")
        trial.run(MESSAGE_COUNT, 1)
        sys.stdout.write(f": {trial.figures}] ")
        self.assertEqual(
            (trial.figures.messageCount, trial.figures.killCount, trial.figures.restartCount),
            (MESSAGE_COUNT, 1, 1),
        )
        audited = MirrorAudit(trial).run()
        sys.stdout.write(f"[{audited}] ")
        self.assertEqual(
            (audited.moreCount, audited.cutCount), (trial.figures.twiceCount, CUT_COUNT)
        )

    def test_figures(self) -> None:
        """
        The mirror's figures, scraped before and after a known load, differ by exactly that load;
        and it says that it is a member at its source.
        """
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        trial = MirrorTrial(
            folder,
            sharedZookeeper(),
            f"figures{SystemRandom().randrange(1 << 32)}",
            0,
            None,
            "--listen",
            "0",
        )
        self.addCleanup(trial.end)
        trial.source.start()
        trial.target.start()
        trial.mirror.start()

        def scrape() -> dict[str, float]:
            with urlopen(f"http://127.0.0.1:{trial.mirror.port}/metrics", timeout=300) as answer:
                return figures(answer.read())

        def mirrored(start: int, count: int) -> dict[str, float]:
            with trial.source.client() as client:
                for number in range(start, start + count):
                    client.produce(TOPIC, number % PARTITION_COUNT, encodeSet([b"%06d" % number]))
                client.processed()
            confirmed, committed = (
                "pylogbroker_mirror_confirmed_messages_total",
                "pylogbroker_mirror_commits_total",
            )
            before = scrape()[committed]
            until(
                lambda: scrape()[confirmed] == start + count and scrape()[committed] > before,
                "all is confirmed, and committed",
                60,
                50,
            )
            return scrape()

        before = mirrored(0, 100)
        after = mirrored(100, 700)
        grown = {
            name.removeprefix("pylogbroker_mirror_"): value - before[name]
            for name, value in after.items()
        }
        for name in ("taken", "confirmed"):
            self.assertEqual(
                (grown[f"{name}_messages_total"], grown[f"{name}_bytes_total"]), (700, 700 * 6)
            )
        topic = f'{{topic="{TOPIC}"}}'
        self.assertEqual(
            (grown[f"topic_messages_total{topic}"], grown[f"topic_bytes_total{topic}"]),
            (700, 700 * 6),
        )
        for name in (
            "under_way_messages",
            "under_way_bytes",
            "retried_messages_total",
            "repeated_messages_total",
            "faults_total",
        ):
            self.assertEqual(after[f"pylogbroker_mirror_{name}"], 0)
        [joined] = [
            value
            for name, value in after.items()
            if name.startswith("pylogbroker_mirror_source_joined{")
        ]
        self.assertEqual(joined, 1)
        self.assertEqual(trial.mirror.stop(), 0)

    def test_memory(self) -> None:
        """
        While a target hangs, the mirror takes no more than it has room for, however much there is
        to mirror; when it goes on, all arrives, once.
        """
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        trial = MirrorTrial(
            folder,
            sharedZookeeper(),
            f"memory{SystemRandom().randrange(1 << 32)}",
            0,
            {"queue.bytes": str(8 << 20)},
        )
        self.addCleanup(trial.end)
        trial.source.start()
        trial.target.start()
        trial.mirror.start()
        trial.target.hang()
        mirror = trial.mirror
        before = mirror.rssSize()
        mirror.forgetRssMax()
        with trial.source.client() as client:
            for number in range(LARGE_COUNT):
                client.produce(
                    TOPIC,
                    number % PARTITION_COUNT,
                    encodeSet([b"%d " % number + bytes(LARGE_SIZE)]),
                )
            client.processed()
        ticks: list[int] = []

        def rests() -> bool:
            ticks.append(mirror.cpuTicks())
            return len(ticks) > 5 and ticks[-1] - ticks[-5] <= 1

        until(rests, "the mirror comes to rest", 300, 200)
        grown = mirror.rssSizeMax() - before
        self.assertLess(trial.targetEnd(), LARGE_COUNT * LARGE_SIZE // 2)
        self.assertLess(
            grown,
            LARGE_COUNT * LARGE_SIZE // 2,
            f"{grown >> 20} MiB for {LARGE_COUNT * LARGE_SIZE >> 20}",
        )
        trial.target.goOn()
        until(lambda: len(trial.numbers()) >= LARGE_COUNT, "all is in the target", 300, 100)
        self.assertEqual(mirror.stop(), 0)
        self.assertEqual(sorted(trial.numbers()), list(range(LARGE_COUNT)))
