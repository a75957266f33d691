"""
What the console costs an idle broker. Beside the other benchmarks, since a tracer would be what is
measured.
"""

from __future__ import annotations

import os
import re
import threading
import time

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.syncclient.syncproducer import SyncProducer
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.chromium import Chromium
from tests.integration.chroots import registered
from tests.integration.zookeeperprocess import sharedZookeeper

SECONDS = 15
TOPIC_COUNT = 5
SHARE_MAX = 0.01
_CONSOLE = re.compile(r"Metrics and console are served on .*:(\d+)")


def cpuSeconds(pid: int) -> float:
    """The processor's time that a process has used, with all its threads."""
    nanoseconds = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
            nanoseconds += int(file.read().split()[0])
    return nanoseconds / 1e9


class IdleTests(SynchronousTestCase):
    """A broker to which nobody speaks but a browser."""

    def share(self, pid: int) -> float:
        """Of one core."""
        begun, before = time.monotonic(), cpuSeconds(pid)
        threading.Event().wait(SECONDS)
        return (cpuSeconds(pid) - before) / (time.monotonic() - begun)

    def askedCount(self, browser: Chromium) -> int:
        """
        How often the page has asked so far: a browser that gets no processor asks more seldom, and
        costs less.
        """
        return int(
            browser.run(
                "return performance.getEntriesByType('resource').filter((each) =>"
                " each.name.includes('/api/')).length"
            )
        )

    def test_idle(self) -> None:
        """
        With the console on, an idle broker takes less than 1 % of a core, of which it is so far
        away that this can be demanded on any machine. What it takes with a page open on it, and how
        often that asked, is printed.
        """
        self.measure("alone", {})

    def test_registered(self) -> None:
        """The same of a broker that is registered in ZooKeeper, which the page has it read."""
        self.measure("with ZooKeeper", registered(sharedZookeeper().servers))

    def measure(self, what: str, properties: dict[str, str]) -> None:
        """
        @param what: for people.
        @param properties: of the broker.
        """
        directory = os.path.abspath(self.mktemp())
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        broker = BrokerProcess(
            directory, {**properties, "http.listener": "0", "num.partitions": "4"}
        ).start()
        self.addCleanup(broker.kill)
        port = int(broker.waitForLine(_CONSOLE).group(1))
        with SyncProducer("127.0.0.1", broker.port) as producer:
            for number in range(TOPIC_COUNT):
                for partition in range(4):
                    producer.send(f"topic-{number}", partition, [b"x" * 100] * 20)
                producer.confirm(f"topic-{number}", 0)
        off = self.share(broker.pid)
        browser = Chromium()
        self.addCleanup(browser.close)
        browser.open(f"http://127.0.0.1:{port}/")
        browser.waitFor("topics", lambda: "topic-4" in browser.text("#topics"))
        before = self.askedCount(browser)
        on = self.share(broker.pid)
        asked = (self.askedCount(browser) - before) / SECONDS
        print(
            f"\nidle broker {what}: {off:.2%} of a core when nobody looks, {on:.2%} with a page"
            f" open, which asked {asked:.2f} times a second"
        )
        self.assertLess(off, SHARE_MAX)
        self.assertGreater(on, 0)
