"""
C{python -m tests.oracle}: record Apache's answers, or compare a broker's with them.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from tests.oracle.answers import readAnswers, writeAnswers
from tests.oracle.apachebroker import apacheBroker, fetchKafka, jarFolder
from tests.oracle.comparer import Rules, compareScenario
from tests.oracle.conversation import Conversation
from tests.oracle.scenarios import scenarios
from tests.oracle.steps import SETTINGS, Scenario


def _record(chosen: Iterable[Scenario], kafka: Path | None) -> int:
    jars = jarFolder(kafka) if kafka is not None else fetchKafka()
    failed = 0
    for (settings, _), together in groupby(sorted(chosen, key=_brokerOf), key=_brokerOf):
        with apacheBroker(jars, dict((*SETTINGS, *settings))) as (host, port):
            for scenario in together:
                lines = list(Conversation(host, port, timeoutSeconds=8).run(scenario))
                writeAnswers(scenario.name, lines)
                _say(f"{scenario.name}: {len(lines)} answers")
                if lines and lines[-1].label == "the scenario":
                    _say(f"    {lines[-1].answer}")
                    failed += 1
    return failed


def _brokerOf(scenario: Scenario) -> tuple[list[tuple[str, str]], str]:
    """Scenarios with the same value are recorded from one broker."""
    return sorted(scenario.settings), scenario.name if scenario.isAlone else ""


def _compare(chosen: Iterable[Scenario], address: str) -> int:
    host, _, port = address.rpartition(":")
    rules = Rules.load()
    failed = 0
    for scenario in chosen:
        differences = compareScenario(host, int(port), scenario)
        unexpected = [found for found in differences if not rules.allow(found)]
        _say(
            f"{scenario.name}: {len(unexpected)} differences,"
            f" {len(differences) - len(unexpected)} deliberate ones"
        )
        for found in unexpected:
            _say(f"  {found}")
        failed += len(unexpected)
    return failed


def _count(chosen: Iterable[Scenario]) -> int:
    """How many answers of each request and version are recorded."""
    counts = Counter(line.request for found in chosen for line in readAnswers(found.name))
    byName: dict[str, list[str]] = {}
    for request, count in counts.items():
        name, _, version = request.partition(" v")
        byName.setdefault(name, []).append(f"v{version}: {count}" if version else str(count))
    for name, versions in sorted(byName.items()):
        _say(f"{name}: {', '.join(sorted(versions, key=lambda text: (len(text), text)))}")
    _say(f"{counts.total()} answers")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """
    @return: the exit status: 1 if there are differences, or a scenario could not be recorded.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="run Apache Kafka and write down its answers")
    record.add_argument("--kafka", type=Path, help="an installation; without it Maven fetches one")
    compare = commands.add_parser("compare", help="compare a running broker with the record")
    compare.add_argument("address", metavar="HOST:PORT")
    count = commands.add_parser("count", help="the recorded answers by request and version")
    for command in (record, compare, count):
        command.add_argument("scenario", nargs="*", help=f"of {', '.join(scenarios())}")
    options = parser.parse_args(arguments)
    known = scenarios()
    unknown = set(options.scenario) - known.keys()
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    chosen = [known[name] for name in options.scenario or known]
    if options.command == "record":
        failed = _record(chosen, options.kafka)
    elif options.command == "compare":
        failed = _compare(chosen, options.address)
    else:
        failed = _count(chosen)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
