"""
What C{pylogbroker audit} says of source and target of a mirror that was killed
(L{tests.integration.mirrortrial}), beside what is there, counted message by message: every window
of both, what is there twice, and holes that are planted in the target's files while its broker is
stopped.

Two holes are planted, each into what the mirror had made, in a window in which nothing is there
twice: a message overwritten by another one of its window, which leaves all counts as they were; and
messages cut out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import Any, NamedTuple

from pylogbroker.audit.envelope import envelopeTime
from pylogbroker.records.messageset import MessageSet
from tests.integration.brokerprocess import ROOT, until
from tests.integration.mirrortrial import TOPIC, WINDOW_MS, MirrorTrial

CUT_COUNT = 7
MISSING_CODE = 3
SIDES = ("source", "target")


class AuditError(AssertionError):
    """The audit does not say what is there."""


class Entry(NamedTuple):
    """A message in a file."""

    start: int
    end: int
    payload: bytes


class Verdict(NamedTuple):
    """
    What the audit said.

    @ivar windows: expected and seen count, and status, by side and window.
    @ivar missing: side, window, status and count of each hole.
    """

    code: int
    windows: dict[tuple[str, int], tuple[int, int, str]]
    missing: list[tuple[str, int, str, int]]
    moreCount: int


class AuditFigures(NamedTuple):
    """
    What was audited.

    @ivar windowCount: windows with messages.
    @ivar moreCount: messages that the audit says are in the target beyond those that were sent.
    @ivar cutCount: messages that were cut out of the target's files, and are what the audit says is
        missing.
    """

    windowCount: int
    moreCount: int
    cutCount: int


def windowOf(stored: bytes) -> int:
    """Where the window of a message in an envelope begins."""
    timeMs = envelopeTime(stored)
    if timeMs is None:
        raise AuditError(f"{stored[:40]!r} is in no envelope")
    return timeMs - timeMs % WINDOW_MS


class MirrorAudit:
    """
    Of a trial that has run.
    """

    def __init__(self, trial: MirrorTrial) -> None:
        self._trial = trial
        self._sent = Counter(map(windowOf, trial.stored(trial.source)))

    def run(self) -> AuditFigures:
        """
        Audit what the mirror has made, and what has become of it with holes.

        @raise AuditError: the audit says something else than what is there.
        """
        lastMs = max(self._sent) + WINDOW_MS
        until(lambda: time() * 1000 > lastMs, "the last window is over")
        whole = self._check([])
        path, window, entries = self._calm()
        before = path.read_bytes()
        self._plant(path, _doubled(before, entries[0], entries[1]))
        self._check([("target", window, "different", 1)])
        self._plant(path, _without(before, entries[:CUT_COUNT]))
        self._check([("target", window, "missing", CUT_COUNT)])
        return AuditFigures(len(self._sent), whole.moreCount, CUT_COUNT)

    # -- what is there

    def _calm(self) -> tuple[Path, int, list[Entry]]:
        """
        The file and window of the target with the most messages, of windows that have each message
        once; and these messages.
        """
        there = Counter(map(windowOf, self._trial.stored(self._trial.target)))
        calm = {window for window, count in there.items() if count == self._sent[window]}
        found: dict[tuple[Path, int], list[Entry]] = {}
        for path in sorted(Path(self._trial.target.directory).glob(f"{TOPIC}-*/*.kafka")):
            for entry in _entries(path.read_bytes()):
                if (window := windowOf(entry.payload)) in calm:
                    found.setdefault((path, window), []).append(entry)
        (path, window), entries = max(found.items(), key=lambda item: len(item[1]))
        if len(entries) <= CUT_COUNT:
            raise AuditError(
                f"no window is good for a hole: {len(entries)} messages are the most of {len(calm)}"
                f" windows of {len(there)}"
            )
        return path, window, entries

    def _plant(self, path: Path, data: bytes) -> None:
        self._trial.stopTarget()
        path.write_bytes(data)
        self._trial.target.start()

    def _truth(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Sent and stored, by side and window."""
        trial, found = self._trial, {}
        for side, broker in (("source", trial.source), ("target", trial.target)):
            there = Counter(map(windowOf, trial.stored(broker)))
            found.update(
                {
                    (side, window): (self._sent[window], there[window])
                    for window in {*self._sent, *there}
                }
            )
        return found

    # -- what the audit says

    def _check(self, holes: Sequence[tuple[str, int, str, int]]) -> Verdict:
        """
        The audit says exactly what is there, window by window, and names these holes and no others.

        @raise AuditError: it does not.
        """
        verdict, truth = self._audit(), self._truth()
        if {place: counts[:2] for place, counts in verdict.windows.items()} != truth:
            raise AuditError(f"the audit says {verdict.windows}, the truth is {truth}")
        if verdict.missing != list(holes) or verdict.code != (MISSING_CODE if holes else 0):
            raise AuditError(
                f"the audit says that {verdict.missing} is missing, with status {verdict.code}; the"
                f" truth is {holes}"
            )
        named = {place[:2]: place[2] for place in holes}
        for place, (expected, seen, status) in verdict.windows.items():
            right = named.get(place, "more" if seen > expected else "complete")
            if status != right:
                raise AuditError(
                    f"the audit says that {place} is {status}: {seen} of {expected}, and it is"
                    f" {right}"
                )
        twiceCount = self._trial.figures.twiceCount
        if verdict.moreCount != twiceCount:
            raise AuditError(
                f"the audit says that {verdict.moreCount} messages are there beyond those that were"
                f" sent: {twiceCount} are there twice"
            )
        return verdict

    def _audit(self) -> Verdict:
        """The command, once."""
        command = [
            sys.executable,
            "-m",
            "pylogbroker",
            "audit",
            "--json",
            "--set",
            f"audit.window.ms={WINDOW_MS}",
            "--set",
            "grace.ms=0",
        ]
        for side in SIDES:
            command += ["--tier", f"{side}={self._trial.connects[side]}"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
        )
        try:
            found: Any = json.loads(done.stdout)
        except ValueError as error:
            raise AuditError(
                f"the audit ended with {done.returncode}: {done.stdout}{done.stderr}"
            ) from error
        if not found["isCertain"]:
            raise AuditError(f"the audit is not certain: {found['notes']}")
        lines: list[dict[str, Any]] = found["windows"]
        holes = [line for line in lines if line["missingCount"]]
        return Verdict(
            done.returncode,
            {
                (line["tier"], line["startMs"]): (
                    line["expectedCount"],
                    line["seenCount"],
                    line["status"],
                )
                for line in lines
            },
            [
                (line["tier"], line["startMs"], line["status"], line["missingCount"])
                for line in holes
            ],
            sum(line["moreCount"] for line in lines if line["status"] == "more"),
        )


def _entries(data: bytes) -> list[Entry]:
    found, start = [], 0
    for payload, end in MessageSet(data).payloads():
        found.append(Entry(start, end, payload))
        start = end
    return found


def _doubled(data: bytes, lost: Entry, doubled: Entry) -> bytes:
    """With a message in another one's place; all are of one size."""
    return data[: lost.start] + data[doubled.start : doubled.end] + data[lost.end :]


def _without(data: bytes, lost: Sequence[Entry]) -> bytes:
    pieces, begin = [], 0
    for entry in lost:
        pieces.append(data[begin : entry.start])
        begin = entry.end
    return b"".join([*pieces, data[begin:]])
