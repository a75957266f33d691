"""
Shows advertisements to an audience that does not exist, and sends what happens: each ad that is
shown to the topic C{impressions}, each click to C{clicks}.

A click comes a moment after its ad was shown. It carries the time of that, as the link behind an ad
does in the world, so that it can be counted with the ads that were shown together with its own.

    python adtraffic.py --zookeeper localhost:2181 --rate 200
"""

from __future__ import annotations

import csv
import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from random import Random
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import LoopingCall, deferLater, react

from pylogbroker.producer.producer import Producer

TICK_SECONDS = 0.05
CLICK_SECONDS_MAX = 2.0


class Audience:
    """Looks at ads, and clicks on some."""

    def __init__(self, reactor: Any, producer: Producer, ads: list[str], random: Random) -> None:
        self._reactor = reactor
        self._producer = producer
        self._chances = {ad: 0.02 + 0.03 * number for number, ad in enumerate(ads)}
        self._random = random

    def look(self, count: int) -> None:
        """So many ads are shown now."""
        for ad in self._random.choices(list(self._chances), k=count):
            shown = self._nowMs()
            self._send("impressions", {"ad": ad, "shown": shown})
            if self._random.random() < self._chances[ad]:
                self._reactor.callLater(
                    self._random.uniform(0, CLICK_SECONDS_MAX), self._click, ad, shown
                )

    def _click(self, ad: str, shown: int) -> None:
        self._send("clicks", {"ad": ad, "shown": shown, "clicked": self._nowMs()})

    def _nowMs(self) -> int:
        return int(self._reactor.seconds() * 1000)

    def _send(self, topic: str, event: dict[str, Any]) -> None:
        self._producer.sendNoWait(topic, json.dumps(event), event["ad"])


async def main(reactor: Any, options: Namespace) -> None:
    with open(options.ads, newline="", encoding="utf-8") as file:
        ads = [row["ad"] for row in csv.DictReader(file)]
    settings = {
        "zk.connect": options.zookeeper,
        "producer.type": "async",
        "queue.time": "100",
        "serializer.class": "kafka.serializer.StringEncoder",
    }
    producer = Producer(reactor, settings)
    await producer.start()
    audience = Audience(reactor, producer, ads, Random(options.seed))

    async def finish() -> None:
        await producer.close()
        print(f"{producer.counters.writtenCount} events were sent", flush=True)

    reactor.addSystemEventTrigger(
        "before", "shutdown", lambda: ensureDeferred(finish())
    )  # after Ctrl-C, too
    showing = LoopingCall.withCount(
        lambda ticks: audience.look(round(options.rate * TICK_SECONDS * ticks))
    )
    showing.start(TICK_SECONDS)
    print("ads are being shown", flush=True)
    await deferLater(reactor, options.seconds)
    showing.stop()
    await deferLater(reactor, CLICK_SECONDS_MAX)  # the last clicks


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--zookeeper",
        required=True,
        metavar="HOST:PORT[,…][/CHROOT]",
        help="where the brokers are registered",
    )
    parser.add_argument(
        "--ads",
        default=Path(__file__).with_name("ads.csv"),
        help="a table with a column ad (ads.csv, beside this program)",
    )
    parser.add_argument("--rate", type=float, default=200, help="ads a second (%(default)s)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=86400,
        help="how long to show ads; Ctrl-C ends it, too (a day)",
    )
    parser.add_argument("--seed", type=int, help="of chance; without, no two runs are the same")
    react(lambda reactor, options: ensureDeferred(main(reactor, options)), [parser.parse_args()])
