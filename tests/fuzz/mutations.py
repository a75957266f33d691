"""
Mutations of requests at the ports of a live broker. The long runs, by hand::

    python -m tests.fuzz.mutations --count 10000000
    python -m tests.fuzz.mutations --port http --count 1000000

L{tests.fuzz.ports} says which ports there are, and what may come of it. Mutations are sent so that
each is known to have been carried out (L{tests.fuzz.sending}).

Meanwhile a I{watcher} on a connection of its own asks, and must be answered as if it were alone
(L{tests.fuzz.watching}). The broker may log no error and print nothing, its memory stays under a
bound, it has no socket left that it had not before, what may not change has not, and it ends as one
should.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable

from tests.fuzz import watching
from tests.fuzz.figures import Figures, describe
from tests.fuzz.livebroker import LiveBroker
from tests.fuzz.ports import PORTS, PlainPort, changes, segments
from tests.fuzz.record import opening, say
from tests.fuzz.sending import Sender

SEED = 20110612
TIDY_COUNT = 100_000
"""After so many mutations, the run removes what they have made."""

Progress = Callable[[Figures], None]


def run(
    count: int,
    seed: int,
    secondsMax: float = float("inf"),
    progress: Progress | None = None,
    kind: str = "plain",
) -> Figures:
    """
    A whole run, with a broker of its own.

    @param count: mutations.
    @param secondsMax: stop early after so many.
    @param progress: called about once a second.
    @param kind: one of L{PORTS}.
    """
    figures = Figures()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pylogbroker-fuzz-") as folder:
        directory = os.path.join(folder, "log")
        port = PORTS[kind](folder)
        broker = LiveBroker(directory, port.properties(), figures)
        try:
            port.prepare(broker)
            before = segments(directory)
            mutator = port.mutator(seed)
            sender = Sender(port, (mutator.next() for _ in range(count)), figures)
            _throw(port, broker, sender, lambda: time.monotonic() - began < secondsMax, progress)
        finally:
            broker.stop()
        figures.faults += changes(port, before, directory) + port.requestFaults(figures)
    figures.seconds = time.monotonic() - began
    if figures.rssSizeMax > watching.RSS_SIZE_MAX:
        figures.faults.append(f"the broker had {figures.rssSizeMax >> 20} MiB")
    if figures.triedCount != count and secondsMax == float("inf") and not figures.faults:
        figures.faults.append(f"{figures.triedCount} were tried")
    return figures


def _throw(
    port: PlainPort,
    broker: LiveBroker,
    sender: Sender,
    hasTime: Callable[[], bool],
    progress: Progress | None,
) -> None:
    """Send all, while somebody watches."""
    figures = sender.figures
    figures.rssSizeAtStart = broker.memory("VmRSS")
    watcher = port.watcher(figures)
    watcher.start()
    while not figures.watchCount and watcher.is_alive():
        time.sleep(0.01)
    figures.socketCountAtStart = broker.socketCount()
    tidied = 0

    def goOn() -> bool:
        nonlocal tidied
        if figures.triedCount // TIDY_COUNT > tidied:
            tidied = figures.triedCount // TIDY_COUNT
            port.tidy()
        if progress is not None:
            progress(figures)
        return broker.isRunning and not figures.faults and hasTime()

    try:
        sender.run(goOn)
        port.endWaits()
        figures.socketCountAtEnd = broker.settledSocketCount(figures.socketCountAtStart)
        if figures.socketCountAtEnd > figures.socketCountAtStart:
            figures.faults.append(
                f"{figures.socketCountAtEnd} sockets are open, and there were"
                f" {figures.socketCountAtStart}"
            )
    except Exception as error:
        figures.faults.append(f"the sender: {error!r}")
    watcher.finish()
    figures.rssSizeMax = broker.memory("VmHWM")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.mutations",
        description="Throw mutations of requests at a port of a live broker.",
    )
    parser.add_argument(
        "--port", choices=list(PORTS), default="plain", help="which port (%(default)s)"
    )
    parser.add_argument("--count", type=int, default=10_000_000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the mutations (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop early after so many"
    )
    options = parser.parse_args()
    opening({"port": options.port, "seed": str(options.seed), "count": str(options.count)})
    last = [0]

    def progress(figures: Figures) -> None:
        step = max(options.count // 20, 1)
        if figures.triedCount // step > last[0]:
            last[0] = figures.triedCount // step
            say(
                f"{figures.triedCount} tried, {figures.connectionCount} connections,"
                f" {figures.watchCount} rounds of the watcher, {figures.rssSize >> 20} MiB"
            )

    figures = run(options.count, options.seed, options.seconds, progress, options.port)
    for line in describe(figures):
        say(line)
    return 1 if figures.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
