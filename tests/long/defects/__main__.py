"""
Does a test of each mended defect fail where the defect is, and pass where it is mended? ::

    git worktree add ../base 9fe9e7f
    python -m tests.long.defects --base ../base    # each must fail
    python -m tests.long.defects                   # here, each must pass

Modules, classes and commands of 9fe9e7f have other names, so today's tests do not run there. The
folder C{probes} has a test or more for each defect, with today's assertions and the names of
9fe9e7f. Each runs in a process of its own, with the environment of this program. At 9fe9e7f it must
fail by its assertion, and the failure must contain the text that C{DEFECTS} names: no import error,
no error besides, no time-out. Here it runs with the names that C{RENAMES} gives. The exit status is
1 if one does otherwise.

They need Java, a ZooKeeper and Chromium, as the tests of C{tests/integration} do. All together take
two minutes or more.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.long.telling import tell

PROBES = Path(__file__).resolve().parent / "probes"
ROOT = PROBES.parent.parent.parent.parent
SECONDS_MAX = 300
_SHOWN_SIZE_MAX = 110
_FAILURE = re.compile(r"^twisted\.trial\.unittest\.FailTest: (.+?)\n\n\S+\n-{20,}$", re.M | re.S)
_FAILED = "\nFAILED (failures=1)\n"
_PASSED = "\nPASSED (successes=1)\n"
RENAMES = {
    "from pylogbroker.cli import consume": "from pylogbroker.cli.commands import consume",
    "pylogbroker.mirror.settings": "pylogbroker.mirror.service",
    "pylogbroker.model": "pylogbroker.types",
    "pylogbroker.spark.batch": "pylogbroker.spark.datasource",
    "pylogbroker.spark.loading.failing": "pylogbroker.spark.loader.jobprogress",
    "tests.broker.onlead": "tests.broker.manualbroker",
    "tests.test_tap": "tests.programs.test_brokertap",
    "test_group, test_owning": "test_connector as test_group, test_groupstate as test_owning",
    "import test_link": "import test_brokerclient as test_link",
    "ZookeeperDouble": "FakeZookeeper",
    "target.provide(": "target.ensureTopic(",
}
"""What the probes name at 9fe9e7f, and what that is called here."""


class Probe(NamedTuple):
    """
    @ivar name: of the test, in C{probes}.
    @ivar expected: what its failure contains.
    """

    name: str
    expected: str


NO_TOPIC = "Outcome(code=0, output=b'', errors='read 0 messages"
DEFECTS = {
    "`consume` of a missing topic exits with 0": (
        Probe("cli.ConsumeProbes.test_unknownTopic", NO_TOPIC),
        Probe("groups.ConsumeProbes.test_unknownTopic", NO_TOPIC),
    ),
    "`offsets` of a missing topic prints 0": (
        Probe("cli.OffsetsProbes.test_unknown", r"Outcome(code=0, output=b'0\n', errors='') !="),
    ),
    '`verify /etc` says "all good"': (
        Probe("cli.VerifyProbes.test_nothing", "(0, '0 segments with 0 messages: all good') !="),
    ),
    "`groups verify` of a group without members succeeds": (
        Probe("groups.VerifyProbes.test_noMembers", "Outcome(code=0, output=b'Rebalance operation"),
    ),
    "a Spark batch on a missing topic is an empty table": (
        Probe("spark.BatchProbes.test_noSuchTopic", "NoBrokersError not raised ([] returned)"),
    ),
    "a refusal over TLS looks like a hang of 44 s": (
        Probe("client.RefusalProbes.test_produceRefusedEarly", "not in 'no answer from tls:"),
    ),
    "`produce` says nothing for 31 s when nothing answers": (
        Probe("cli.ProduceProbes.test_announcedBroker", "'pylogbroker: cannot connect to"),
        Probe("cli.ProduceProbes.test_announcedZookeeper", "'pylogbroker: no connection to Zoo"),
        Probe("cli.TakingProbes.test_announcedTaking", "not in 'pylogbroker: no answer from"),
        Probe("client.LinkProbes.test_reportsFailure", "Lists differ: [] != ['No connection to"),
    ),
    "`consume --follow` is silent for 30 s after the broker is gone": (
        Probe("cli.ConsumeProbes.test_silentBroker", "not in 'read 1 messages; the next offset is"),
    ),
    "a failed start prints its reason twice, or a page of usage": (
        Probe("programs.StartProbes.test_oneLine", "2 != 1 : "),
        Probe("programs.StartProbes.test_noUsage", "'Usage' in \"Usage: twistd [options]"),
    ),
    "`perf --help` is an error, `consum` gets no suggestion": (
        Probe("cli.ParserProbes.test_helpOfNouns", "invalid choice: 'perf'"),
        Probe("cli.ParserProbes.test_wrong", "invalid choice: 'consum'"),
    ),
    "`produce` has no `--json`": (
        Probe("cli.ProduceProbes.test_json", "error: unrecognized arguments: --json"),
    ),
    "`load` without Java says JAVA_GATEWAY_EXITED": (
        Probe("spark.LoadProbes.test_noJava", "not in '[JAVA_GATEWAY_EXITED]"),
    ),
    "docs/pipeline needs a file that is not shipped; a traceback": (
        Probe("programs.PipelineProbes.test_noSuchFile", "FileNotFoundError: [Errno 2]"),
    ),
    "the console loses stopped brokers": (
        Probe("console.StateProbes.test_stoppedBroker", "[(0, True)] != [(0, True), (1, False)]"),
        Probe("console.PageProbes.test_stoppedBroker", "'good' != 'bad'"),
    ),
    "the console is green without ZooKeeper, and logs nothing": (
        Probe("console.PageProbes.test_noZookeeper", "'good' != 'bad'"),
        Probe("console.AwayProbes.test_lostLine", "is lost' not in ''"),
        Probe("console.AwayProbes.test_lostMetric", "b'zookeeper_connected 0' not in b''"),
    ),
    "lag without a stored offset is left out": (
        Probe("console.GroupProbes.test_withoutOffset", "{(0, 0): 10} !="),
    ),
    "idle members are not shown": (
        Probe("console.PageProbes.test_idleMembers", r"'late_idle' not in 'late\n1 member, lag"),
    ),
    "a member never recreates its deleted owner nodes": (
        Probe("groups.OwnerProbes.test_comesBack", "({}, True) != ({'0-0': 'g_m1-0'"),
        Probe("groups.OffsetProbes.test_deleted", "(None, None) != ('11', '0')"),
    ),
    "parent nodes hold empty data where 0.7.2 writes null": (
        Probe("groups.ParentProbes.test_parents", "'/a/b': (b'', 0), '/a/b/c': (b'', 0)} !="),
    ),
    "the mirror logs a stuck message at each attempt": (
        Probe("client.TargetProbes.test_stuck", "First list contains 3 additional elements"),
    ),
    "the mirror refuses 0.7.2's own `producer.properties`": (
        Probe("client.SettingsProbes.test_encoder", "refused: serializer.class"),
    ),
    "a plain install has no fast CRC-32; small socket buffers": (
        Probe("programs.PackingProbes.test_requirements", """zlib-ng>=0.5; extra == "fast\""""),
        Probe("programs.BufferProbes.test_buffersLeft", "204800 in (0, 204800)"),
    ),
    'a red "nobody" at lag 0, but a grey lag': (
        Probe("console.MarkProbes.test_noLag", "['nobody', 'nobody'] != []"),
        Probe("console.MarkProbes.test_lag", "'9.9 KiB' not in ['nobody', 'nobody']"),
    ),
    "a broker's page charts the cluster's bytes in beside its own bytes out": (
        Probe("console.ScopeProbes.test_brokerPage", "/s' != '0 B/s'"),
    ),
    '"bytes out: not known", columns of "–", "look at its own page"': (
        Probe(
            "console.ScopeProbes.test_clusterPage",
            "['bytes out', 'not known', '–', 'look at its own page'] != []",
        ),
    ),
    "a mirror without a target logs every 10 s that positions were not stored": (
        Probe(
            "groups.RepeatedProbes.test_repeatedFailure",
            "First list contains 6 additional elements",
        ),
    ),
    "`produce` and `perf produce` without credentials fail where `zk.acl=readable`": (
        Probe("client.ReadableProbes.test_readableForProducers", "refused: create /brokers/ids: "),
    ),
    "below a deleted chroot, a node is created again and again without end": (
        Probe("groups.ChrootProbes.test_chrootDeleted", "found no result instead"),
    ),
    "of two listeners, the taken one is not named, and its failure is left unhandled": (
        Probe(
            "programs.StartProbes.test_secondListener",
            "pylogbroker: an endpoint in listeners needs a running reactor",
        ),
    ),
}


def failureOf(output: str) -> str | None:
    """
    The reason of a test that failed by its assertion and did nothing worse, on one line; L{None} of
    any other.

    @param output: what trial printed of one test.
    """
    found = _FAILURE.findall(output)
    return " ".join(found[0].split()) if len(found) == 1 and _FAILED in output else None


def rename(folder: Path) -> None:
    """Write the probes with today's names to a folder."""
    for path in PROBES.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for old, new in RENAMES.items():
            text = text.replace(old, new)
        (folder / path.name).write_text(text, encoding="utf-8")


def run(probe: Probe, probes: Path, tree: Path) -> str:
    """
    Run a probe; returns what trial prints.

    @param probes: the folder that it is in.
    @param tree: the checkout whose package and tests it imports.
    """
    folder = tempfile.mkdtemp(prefix="pylogbroker-defects-")
    try:
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "twisted.trial",
                "--temp-directory",
                f"{folder}/trial",
                f"probe_{probe.name}",
            ],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(probes), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS_MAX} s"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shown(failure: str, expected: str) -> str:
    """What is expected and stands around it, short enough for a line."""
    start = max(0, failure.index(expected) + len(expected) - _SHOWN_SIZE_MAX)
    end = start + _SHOWN_SIZE_MAX
    return "… " * (start > 0) + failure[start:end].strip() + " …" * (end < len(failure))


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.defects",
        description="See the tests of mended defects fail where the defects are, or pass here.",
    )
    parser.add_argument("--base", type=Path, help="a checkout of 9fe9e7f; without: run them here")
    parser.add_argument("--only", default="", help="probes whose names contain this")
    options = parser.parse_args()
    chosen = [
        (defect, probe)
        for defect, probes in DEFECTS.items()
        for probe in probes
        if options.only in probe.name
    ]
    if not chosen:
        parser.error(f"no probe's name contains {options.only!r}")
    rightCount = 0
    with tempfile.TemporaryDirectory(prefix="pylogbroker-probes-") as folder:
        rename(Path(folder))
        for number, (defect, probe) in enumerate(chosen, 1):
            if options.base is None:
                said = run(probe, Path(folder), ROOT)
                isRight, outcome = _PASSED in said, "passes"
            else:
                said = run(probe, PROBES, options.base.resolve())
                failure = failureOf(said) or ""
                isRight = probe.expected in failure
                outcome = shown(failure, probe.expected) if isRight else ""
            rightCount += isRight
            tell(f"{number}/{len(chosen)} {defect}\n    {probe.name}")
            tell(f"    {outcome}" if isRight else f"    NOT SO:\n{said}")
    where = "here" if options.base is None else f"in {options.base}"
    done = "pass" if options.base is None else "fail as expected"
    tell(f"{rightCount} of {len(chosen)} {done} {where}")
    return int(rightCount < len(chosen))


if __name__ == "__main__":
    raise SystemExit(main())
