"""
Kazoo's own tests, of its package, against our server: in a process with pytest and
L{tests.integration.kazooharness}.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent

MODULES = (
    "barrier",
    "build",
    "cache",
    "client",
    "connection",
    "counter",
    "election",
    "interrupt",
    "lease",
    "lock",
    "partitioner",
    "party",
    "queue",
    "watchers",
)
"""
Those that use a server. The others test kazoo alone, or need gevent, eventlet or SASL, which is not
installed.
"""

NOT_OURS = {
    "TestReconfig": "an ensemble is reconfigured",
    "TestSSLClient": "the server has TLS",
    "TestReadOnlyMode": "two of three servers are stopped",
    "test_update_host_list": "one of three servers is stopped",
    "KazooTreeCacheTests and test_close": "counts living objects, and fails on Apache's, too",
    "KazooTreeCacheTests and test_delete_operation": "counts living objects, likewise",
}
"""Tests that one server does not suffice for, and why; as pytest's C{-k} selects them."""

SLOW = (
    "test_child_watcher_remove_session_watcher",
    "test_race_condition_new_partitioner",
    "test_request_queuing",
    "test_child_stop_on_session_loss",
    "test_timeout",
    "test_lock_timeout",
    "test_listener_only_called_on_real_state_change",
)
"""Tests that wait for seconds: L{tests.long.zookeeper} has them."""


class KazooOutcome(NamedTuple):
    """
    @ivar failed: their names.
    @ivar skipped: their names, and why.
    """

    passedCount: int
    failed: list[str]
    skipped: dict[str, str]
    seconds: float


def runKazoosTests(folder: str, leftOut: Sequence[str] = ()) -> KazooOutcome:
    """
    Run them. Blocks.

    @param folder: for what they leave behind; it exists.
    @param leftOut: tests to leave out besides L{NOT_OURS}.
    @raise AssertionError: pytest did not come to the end.
    """
    folder = os.path.abspath(folder)
    report = os.path.join(folder, "kazoo.xml")
    terms = " or ".join(f"({each})" for each in (*NOT_OURS, *leftOut))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p"),
            *("tests.integration.kazooharness", "-c", os.devnull, f"--rootdir={folder}"),
            *(f"--junit-xml={report}", "-k", f"not ({terms})", "--pyargs"),
            *(f"kazoo.tests.test_{each}" for each in MODULES),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CI": "1", "ZOOKEEPER_VERSION": "3.9.0"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    if not os.path.exists(report):
        raise AssertionError(f"pytest has ended with {done.returncode}: {done.stdout}{done.stderr}")
    passedCount, failed, skipped, seconds = 0, [], {}, 0.0
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        seconds += float(case.get("time", "0"))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skip is not None:
            skipped[name] = skip.get("message", "")
        else:
            passedCount += 1
    return KazooOutcome(passedCount, failed, skipped, seconds)
