"""
The long form of the power cuts of L{tests.integration.test_kafkapowercut} and
L{tests.storage.test_batchrecovery}, of L{tests.storage.test_replicalog}, and of
L{tests.integration.test_clusterpowercut}::

    python -m tests.long.powercut --operations 1000000 --seed 7
    python -m tests.long.powercut --of partition --operations 1000000 --seed 7
    python -m tests.long.powercut --of replica --operations 1000000 --seed 7
    python -m tests.long.powercut --of cluster --operations 1000000 --seed 7
    python -m tests.long.powercut --of cachedcluster --operations 1000000 --seed 7

With C{PYTHONHASHSEED=0} in the environment, a seed gives the same lives again.

Random lives, of a whole broker with clients of today's protocol, of one partition of record
batches, of a follower's log, which is truncated as well, or of three brokers whose power fails at
the same time, each with power cuts before random file operations. The figures say what the
operations changed, and what those would have changed before which the power failed. The exit status
is 0 if nothing that was acknowledged is lost; a C{cachedcluster}, with C{log.flush.acks.all=false},
may lose some of it, which the figures count, and its replicas must agree.
"""

from __future__ import annotations

import argparse
import gc
from collections import Counter
from collections.abc import Callable
from time import monotonic

from twisted.logger import LogPublisher, globalLogBeginner

from pylogbroker.storage import metadatastore
from tests.integration.clusterpowercuts import ClusterPowerCutLife
from tests.integration.kafkapowercuts import JOURNAL_SIZE, KafkaPowerCutLife
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart
from tests.storage import test_replicalog
from tests.storage.test_batchrecovery import PowerCutTests

ACT_COUNT = 400
CLUSTER_CUT_COUNT = 5


def _liveOfPartition(seed: int, figures: Counter[str]) -> None:
    tests = PowerCutTests("test_nothingFlushedIsLost")
    tests.setUp()
    figures["operations"] += tests.checkLife(seed)


def _liveOfReplica(seed: int, figures: Counter[str]) -> None:
    figures["operations"] += test_replicalog.PowerCutTests("test_lives").checkLife(seed)


def _liveOfCluster(seed: int, figures: Counter[str], isDurable: bool = True) -> None:
    life = ClusterPowerCutLife(seed, isDurable)
    life.run(CLUSTER_CUT_COUNT)
    slowest = max(figures["recoveryMsMax"], life.figures["recoveryMsMax"])
    figures.update(life.figures)
    figures["recoveryMsMax"] = slowest
    figures["operations"] += life.operationCount
    gc.collect()


def _liveOfCachedCluster(seed: int, figures: Counter[str]) -> None:
    _liveOfCluster(seed, figures, False)


def _liveOfBroker(seed: int, figures: Counter[str]) -> None:
    life = KafkaPowerCutLife(seed)
    life.run(ACT_COUNT)
    files = life.fileSystem
    for name, count in files.counts.items():
        figures[f"of {name}"] += count
    for name, count in files.cuts.items():
        figures[f"cuts before {name}"] += count
    figures["operations"] += files.counts.total()
    figures["cuts"] += life.cutCount
    figures["deaths"] += life.deathCount


LIVES: dict[str, Callable[[int, Counter[str]], None]] = {
    "broker": _liveOfBroker,
    "cluster": _liveOfCluster,
    "cachedcluster": _liveOfCachedCluster,
    "partition": _liveOfPartition,
    "replica": _liveOfReplica,
}


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.powercut",
        description="Cut the power of brokers, or of partitions, and look for what was lost.",
    )
    parser.add_argument("--of", choices=LIVES, default="broker", help="whose lives (broker)")
    parser.add_argument(
        "--operations", type=int, default=1_000_000, help="file operations (a million)"
    )
    addSeed(parser, "the first life; the next one has the next")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(f"seed {seed}, {options.operations} file operations, lives of a {options.of}")
    metadatastore.SNAPSHOT_SIZE_MIN = JOURNAL_SIZE
    # A broker without power says so in many ways.
    globalLogBeginner.beginLoggingTo([LogPublisher()], redirectStandardIO=False)
    begun = monotonic()
    figures: Counter[str] = Counter()
    try:
        while figures["operations"] < options.operations:
            LIVES[options.of](seed + figures["lives"], figures)
            figures["lives"] += 1
    except AssertionError as error:
        tell(f"LOST, in the life {seed + figures['lives']}: {error}")
        return 1
    finally:
        tellFigures({**dict(sorted(figures.items())), "seconds": monotonic() - begun})
    lost = figures["lost"]
    what = f"{lost} messages that were" if lost else "nothing that was"
    tell(f"{what} acknowledged {'are' if lost else 'is'} lost, as promised")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
