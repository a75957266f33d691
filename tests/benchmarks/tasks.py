"""
C{python -m tests.benchmarks.tasks}: how many cases of the word count a test can run in a second
with L{pylogbroker.testing.tasktestdriver.TaskTestDriver}.

A case is what a test does: new drivers for both jobs of C{docs/examples/tasks/wordcount.py}, a line
of ten words in, its words out and into the second job, the counts of its store and of its changelog
compared with those of a C{Counter}, and both drivers closed. A high-level case does so
with one job of streams: a new driver, the line in, its counts out, and those of its store.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pylogbroker.tasks.job import Job, loadJobs
from pylogbroker.tasks.serdes import INTEGER, STRING
from pylogbroker.tasks.streams import buildJob, stream
from pylogbroker.testing.tasktestdriver import TaskTestDriver

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tasks" / "wordcount.py"
VOCABULARY = ["the", "log", "is", "a", "list", "of", "messages", "in", "order", "and", "offset"]
WORD_COUNT = 10


def runCase(splitWords: Job, countWords: Job, words: Sequence[str]) -> None:
    """
    Run a case.

    @raise RuntimeError: a count is wrong.
    """
    truth = Counter(words)
    with TaskTestDriver(splitWords) as splitting, TaskTestDriver(countWords) as counting:
        splitting.pipeInput("lines", None, " ".join(words))
        for word, one in splitting.readOutput("words"):
            counting.pipeInput("words", word, one)
        stored = dict(counting.getStore("word-counts").all())
        counting.commit()
        if not stored == dict(counting.readOutput("word-counts")) == truth:
            raise RuntimeError(f"{stored} where {truth} are counted")


def streamJob() -> Job:
    """The word count as one job of the high-level API."""
    lines = stream("lines", message=STRING)
    words = lines.flatMap(lambda _key, line: [(word, 1) for word in line.split()], STRING, INTEGER)
    return buildJob("word-count", words.groupByKey().count("counts").toStream().to("counts"))


def runStreamCase(job: Job, words: Sequence[str]) -> None:
    """
    Run a high-level case.

    @raise RuntimeError: a count is wrong.
    """
    truth = Counter(words)
    with TaskTestDriver(job) as driver:
        driver.pipeInput("lines", None, " ".join(words))
        sent = dict(driver.readOutput("counts"))
        stored = {word: found.value for word, found in driver.getStore("counts").all()}
        if not stored == sent == truth:
            raise RuntimeError(f"{sent} where {truth} are counted")


def casesPerSecond(seconds: float, case: Callable[[Sequence[str]], object]) -> tuple[float, float]:
    """
    Run cases for some time.

    @return: cases in a second, by the clock and by the processor.
    """
    chance = random.Random(1)
    count, begun, cpuBegun = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - begun) < seconds:
        case(chance.choices(VOCABULARY, k=WORD_COUNT))
        count += 1
    return count / elapsed, count / (time.process_time() - cpuBegun)


def main(arguments: Sequence[str]) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tasks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    options = parser.parse_args(arguments)
    jobs = loadJobs(str(EXAMPLE))
    low = partial(runCase, jobs["split-words"], jobs["count-words"])
    high = partial(runStreamCase, streamJob())
    print("| round | API | cases a second | a second of the processor |\n|---|---|---|---|")
    for number in range(1, options.rounds + 1):
        for name, case in (("low", low), ("high", high)):
            byClock, byCpu = casesPerSecond(options.seconds, case)
            print(f"| {number} | {name} | {byClock:,.0f} | {byCpu:,.0f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
