"""
Reads what the processes of a chaos run wrote down (L{tests.integration.kafkachaosmember}) into the
values that L{tests.integration.kafkachaosjudge} takes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from math import inf

from tests.integration.chaosjudge import Fault
from tests.integration.kafkachaosjudge import Commit, Sent, Tenure

Lines = Iterable[list[str]]
"""A record: the words of each line."""

TENURE_WORDS = ("assigned", "revoked", "lost", "left")
"""Of the lines that say which partitions a member has."""


def _seconds(ns: str) -> float:
    return int(ns) / 1e9


def sentBy(lines: Lines, isKilled: bool = False) -> tuple[Sent, list[str]]:
    """
    A producer's messages, and what is wrong with its record: two outcomes of one message, or
    counters that say something else than the callers were told.
    """
    numbers, outcomes, places = [], {}, {}
    counters: dict[str, int] = {}
    faults = []
    for words in lines:
        if words[0] == "sent":
            numbers.append(int(words[2]))
        elif words[0] in ("ok", "failed", "unknown"):
            number = int(words[2])
            if number in outcomes:
                faults.append(f"two outcomes of {number}")
            outcomes[number] = words[0]
            if words[0] == "ok":
                places[number] = words[3], int(words[4])
        elif words[0] == "end":
            counters = json.loads(" ".join(words[2:]))
    tally = Counter(outcomes.values())
    told = {word: tally[word] for word in ("ok", "failed", "unknown")}
    counted = {
        word: counters.get(f"{name}Count")
        for word, name in (("ok", "written"), ("failed", "failed"), ("unknown", "unknown"))
    }
    if not isKilled and counted != told:
        faults.append(f"the counters say {counted}, the callers were told {told}")
    return Sent(numbers, outcomes, places, isKilled), faults


def ownedBy(lines: Lines) -> set[str]:
    """The partitions that a member takes for its own at the end of its record."""
    return {tenure.place for tenure in tenuresOf("", lines)[0] if tenure.end == inf}


def tenuresOf(
    member: str, lines: Lines, killedSeconds: float | None = None
) -> tuple[list[Tenure], list[str]]:
    """
    The partitions that a member had, and what is wrong with its record: messages of others.

    @param killedSeconds: when it was.
    """
    begun: dict[str, tuple[float, list[tuple[float, int, str]]]] = {}
    found: list[Tenure] = []
    faults = []

    def end(places: Iterable[str], seconds: float) -> None:
        for place in places:
            if place in begun:
                begin, got = begun.pop(place)
                found.append(Tenure(member, place, begin, seconds, got))

    for words in lines:
        seconds = _seconds(words[1])
        if words[0] == "assigned":
            for place in filter(None, words[2].split(",")):
                begun[place] = seconds, []
        elif words[0] in ("revoked", "lost"):
            end(words[2].split(","), seconds)
        elif words[0] == "left":
            end([*begun], seconds)
        elif words[0] == "got":
            if words[2] in begun:
                begun[words[2]][1].append((seconds, int(words[3]), words[4]))
            else:
                faults.append(f"{member} got {words[4]} of {words[2]}, which it does not have")
    end([*begun], inf if killedSeconds is None else killedSeconds)
    return found, faults


def commitsOf(lines: Lines) -> Iterator[Commit]:
    """The positions of which a member was told that they are committed."""
    for words in lines:
        if words[0] == "committed":
            yield Commit(_seconds(words[1]), words[2], int(words[3]))


def lateTimesOf(member: str, lines: Lines) -> Iterator[Fault]:
    """When a member had no turn, which is as good as stopped."""
    for words in lines:
        if words[0] == "late":
            seconds = _seconds(words[1])
            yield Fault("stop", member, seconds - float(words[2]), seconds)
